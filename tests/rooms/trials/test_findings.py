"""What the page draws."""

from __future__ import annotations

import msgspec
import pytest

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from lab.rooms.trials import findings
from lab.rooms.trials.analyze import Gathered
from lab.rooms.trials.config import Trial


@pytest.mark.parametrize("ran, columns", [(11, 11), (1, 1), (0, 1), (96, 48)])
def test_trials_that_did_not_run_take_no_room_in_the_timeline(ran, columns, monkeypatch, tmp_path):
    """A run that is decided after 11 of 160 trials has 11 columns, and not 3 of 48."""
    drawn = []
    plain = findings.cell_grid
    monkeypatch.setattr(
        findings, "cell_grid", lambda *given, **more: drawn.append(given) or plain(*given, **more)
    )
    trials = [Trial(cell="none", trial=n, verdict="pass" if n < ran else "not run") for n in range(160)]
    findings._timeline(Gathered(trials, ["none"], "none", None), tmp_path)
    assert len(drawn[0][1]) == columns


def test_the_verdict_says_why_trials_are_in_no_rate_and_what_they_depend_on():
    trials = [
        Trial(
            cell="none", trial=n, verdict="fail" if n % 2 else "pass", order=n, boot="b", step=f"none-{n:04d}"
        )
        for n in range(20)
    ]
    clock = [f"2026-01-01T0{1 if n < 9 else 0}:00:{n:02d}+00:00" for n in range(20)]
    trials = [
        msgspec.structs.replace(one, began_s=100.0 + n, started_utc=clock[n]) for n, one in enumerate(trials)
    ]
    trials.append(Trial(cell="none", trial=20, verdict="error", reason="ran past --trial-timeout"))
    found = Gathered(trials, ["none"], "none", None)
    text = "\n".join(
        findings.sentences(findings.decide(trials, ["none"], "none", stop=False, until=None), found)
    )
    assert "Failures alternate with passes (p 0.002): trials depend on those before them" in text
    assert "The wall clock was set back by 3,600 s before none-0009: order and durations" in text
    assert "1 trial ended in error and is in no rate (of none: ran past --trial-timeout)." in text
