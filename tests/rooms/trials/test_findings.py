"""What the page draws."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from lab.rooms.trials import findings
from lab.rooms.trials.analyze import Gathered
from lab.rooms.trials.config import Cell, Trial, TrialsConfig

CONFIG = TrialsConfig(command=("x",), cells=(Cell(name="none"),), baseline="none", trials=160, fail="exit!=0")


@pytest.mark.parametrize("ran, columns", [(11, 11), (1, 1), (0, 1), (96, 48)])
def test_trials_that_did_not_run_take_no_room_in_the_timeline(ran, columns, monkeypatch, tmp_path):
    """A run that is decided after 11 of 160 trials has 11 columns, and not 3 of 48."""
    drawn = []
    plain = findings.cell_grid
    monkeypatch.setattr(
        findings, "cell_grid", lambda *given, **more: drawn.append(given) or plain(*given, **more)
    )
    trials = [Trial(cell="none", trial=n, verdict="pass" if n < ran else "not run") for n in range(160)]
    findings._timeline(Gathered(trials, CONFIG), tmp_path)
    assert len(drawn[0][1]) == columns


def test_the_verdict_says_why_trials_are_in_no_rate_and_what_they_depend_on():
    trials = [Trial(cell="none", trial=n, verdict="fail" if n % 2 else "pass", order=n) for n in range(20)]
    trials.append(Trial(cell="none", trial=20, verdict="error", reason="ran past --trial-timeout"))
    found = Gathered(trials, CONFIG)
    text = "\n".join(
        findings.sentences(findings.decide(trials, ["none"], "none", stop=False, until=None), found)
    )
    assert "Failures alternate with passes (p 0.002): trials depend on those before them" in text
    assert "1 trial ended in error and is in no rate (of none: ran past --trial-timeout)." in text
