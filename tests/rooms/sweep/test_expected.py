"""What a run planned, and whether its blocks ran in one go."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

from lab.core.step import Outcome, Status, Step
from lab.rooms.sweep.expected import expected_rows, interrupted_blocks

BEGIN = datetime(2026, 5, 4, 3, 0, tzinfo=timezone.utc)


def _run(*steps: tuple[int, int, float, Status | None]) -> SimpleNamespace:
    """Steps of (channels, repeat, minutes after the begin, status), each of ten minutes."""
    records = []
    for channels, repeat, minutes, status in steps:
        labels = {"threads": 0, "channels": channels, "algorithm": "ring", "repeat": repeat}
        step = Step(name=f"{channels}ch_{repeat}", argv=("x",), labels=labels)
        when = (BEGIN + timedelta(minutes=minutes)).isoformat()
        outcome = status and Outcome(status=status, started_utc=when, seconds=600)
        records.append(SimpleNamespace(step=step, outcome=outcome))
    return SimpleNamespace(manifest=SimpleNamespace(steps=records))


def test_a_block_that_was_resumed_much_later_says_so():
    run = _run((28, 1, 0, Status.ok), (42, 1, 11, Status.ok), (42, 2, 21, Status.ok), (28, 2, 151, Status.ok))
    assert interrupted_blocks(run) == [
        "Block 2 paused for 2.0 h between 42ch_2 and 28ch_2: what changed on the machine meanwhile is part "
        "of their comparison."
    ]


def test_a_pause_between_blocks_is_none_within_one():
    run = _run((28, 1, 0, Status.ok), (42, 1, 11, Status.failed), (42, 2, 900, Status.ok), (28, 2, 911, None))
    assert interrupted_blocks(run) == [] and interrupted_blocks(None) == []


def test_a_planned_row_has_its_whole_setting():
    rows = expected_rows(_run((28, 1, 0, Status.ok), (28, 2, 0, None)))
    assert [(row["algorithm"], row["protocol"], row["status"]) for row in rows] == [
        ("ring", "", "ok"),
        ("ring", "", "missing"),
    ]
