"""What the page draws."""

from __future__ import annotations

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
