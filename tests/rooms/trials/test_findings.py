"""What the page draws."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from lab.rooms.trials import findings
from lab.rooms.trials.analyze import Gathered
from lab.rooms.trials.config import Cell, Trial, TrialsConfig
from lab.rooms.trials.replay_page import report as report_replay
from tests.compare.same.test_steps import write

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


def test_hostile_names_neither_command_the_terminal_nor_become_html(tmp_path):
    path = write(tmp_path / "steps/run-0/bits_rank0.jsonl")
    text = path.read_text().replace("blocks.0", "=1+1<script>alert(1)</script>\\u001b[31m")
    path.write_text(text)
    other = tmp_path / "steps/run-1/bits_rank0.jsonl"
    other.parent.mkdir()
    other.write_text(text.replace('"21"', '"22"'))
    found = report_replay(tmp_path, tmp_path / "out", None)
    page = (tmp_path / "out/report.html").read_text()
    assert "<script>alert(1)" not in page and "\x1b[31m" not in found.terminal
    assert ",=1+1" not in (tmp_path / "out/tables/divergences.csv").read_text()


def test_a_record_without_a_value_is_no_all_clear(tmp_path):
    path = tmp_path / "bits_rank0.jsonl"
    path.write_text('{"meta":{"format":2,"rank":0}}\n{"end":{"rows":0,"steps":0}}\n')
    assert report_replay(tmp_path, tmp_path / "out", None).status == "fail"
