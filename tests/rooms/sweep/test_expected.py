"""What a run planned."""

from __future__ import annotations

from types import SimpleNamespace

from lab.core.step import Outcome, Status, Step
from lab.rooms.sweep.journal import expected_runs
from lab.rooms.sweep.knobs import Key


def _run(*steps: tuple[int, int, Status | None]) -> SimpleNamespace:
    """Steps of (channels, repeat, status)."""
    records = []
    for channels, repeat, status in steps:
        labels = {"threads": 0, "channels": channels, "algorithm": "ring", "repeat": repeat}
        step = Step(name=f"{channels}ch_{repeat}", argv=("x",), labels=labels)
        outcome = status and Outcome(status=status)
        records.append(SimpleNamespace(step=step, outcome=outcome))
    return SimpleNamespace(manifest=SimpleNamespace(steps=records))


def test_a_planned_run_has_its_whole_setting():
    runs = expected_runs(_run((28, 1, Status.ok), (28, 2, None)))
    assert runs == {
        Key(0, 28, "ring", "", 1): ("ok", ""),
        Key(0, 28, "ring", "", 2): ("missing", "did not run"),
    }
