"""The driver from plan to findings without a process: every step is played back from a recorded run."""

from __future__ import annotations

import json
import signal

import msgspec
import pytest

from lab import engines
from lab.core.manifest import ImageRecord, Kind
from lab.core.options import Options
from lab.core.run import Run
from lab.core.step import Outcome, Status
from lab.driver.drive import drive, resume, stop_run
from lab.errors import EngineError, Interrupted, StepFailed, UsageError
from lab.terminal.console import Console
from tests.driver.made import KILLED, OK, a_step, experiment, recording
from tests.engines.recorded_engine import RecordedEngine


def outcomes(folder) -> dict[str, str]:
    return {
        record.step.name: record.outcome.status.value if record.outcome else "open"
        for record in Run.open(folder).manifest.steps
    }


def test_a_run_played_back_has_the_recorded_outcomes_output_and_files(tmp_path, capsys):
    source = recording(tmp_path / "source", {"a": OK, "b": OK})
    drive(experiment(source, tmp_path / "run", "a", "b"))
    run = Run.open(tmp_path / "run")
    assert run.manifest.kind is Kind.measured and run.manifest.engine == "recorded"
    assert run.manifest.container["recording"] == str(tmp_path / "source")
    assert [record.outcome for record in run.manifest.steps] == [OK, OK]
    assert run.log(a_step("a")).read_text() == "one\ntwo\na done\n"
    assert json.loads((tmp_path / "run/steps/b/result.json").read_text()) == {"name": "b"}
    said = capsys.readouterr().err
    assert (
        "note: a note" in said
        and "[a] two" in said
        and "> b starts (2 of 2)" in said
        and "✓ a: ok in 1.5 s" in said
    )


def test_a_recorded_failure_is_a_row_with_its_last_lines_and_the_others_run(tmp_path):
    source = recording(tmp_path / "source", {"a": OK, "b": KILLED, "c": OK})
    with pytest.raises(StepFailed) as caught:
        drive(experiment(source, tmp_path / "run", "a", "b", "c", quiet=True))
    assert outcomes(tmp_path / "run") == {"a": "ok", "b": "oom", "c": "ok"}
    assert "1 of 3 steps did not succeed" in str(caught.value) and "CUDA out of memory" in str(caught.value)
    assert "lab run --resume" in str(caught.value)


def test_a_step_that_the_recording_lacks_fails_and_says_what_it_has(tmp_path):
    source = recording(tmp_path / "source", {"a": OK})
    with pytest.raises(StepFailed, match="no finished step 'z'"):
        drive(experiment(source, tmp_path / "run", "a", "z", quiet=True))
    assert outcomes(tmp_path / "run") == {"a": "ok", "z": "failed"}


def test_resume_runs_only_what_did_not_succeed(tmp_path, capsys):
    source = recording(tmp_path / "source", {"a": OK, "b": KILLED})
    with pytest.raises(StepFailed):
        drive(experiment(source, tmp_path / "run", "a", "b"))
    source.finish(a_step("b"), OK)
    resume(tmp_path / "run", Options(analysis="none"))
    run = Run.open(tmp_path / "run")
    assert [record.attempts for record in run.manifest.steps] == [1, 2]
    assert outcomes(tmp_path / "run") == {"a": "ok", "b": "ok"}
    assert "1 of 2 steps to do" in capsys.readouterr().err


def test_a_step_left_open_by_a_killed_driver_runs_again(tmp_path):
    source = recording(tmp_path / "source", {"a": OK})
    drive(experiment(source, tmp_path / "run", "a", quiet=True))
    Run.open(tmp_path / "run").begin(a_step("a"))
    assert outcomes(tmp_path / "run") == {"a": "open"}
    resume(tmp_path / "run", Options(analysis="none", quiet=True))
    assert outcomes(tmp_path / "run") == {"a": "ok"}


def test_steps_are_added_to_a_run(tmp_path):
    source = recording(tmp_path / "source", {"a": OK, "b": OK})
    drive(experiment(source, tmp_path / "run", "a", quiet=True))
    drive(experiment(source, tmp_path / "run", "a", "b", quiet=True, skip_existing=True))
    assert outcomes(tmp_path / "run") == {"a": "ok", "b": "ok"}


def test_a_signal_ends_the_run_between_steps_and_leaves_the_rest_to_resume(tmp_path, monkeypatch):
    source = recording(tmp_path / "source", {"a": OK, "b": OK})
    plain = RecordedEngine.run

    def stopped_after(self, run, step, gpus, *, on_line, stop):
        outcome = plain(self, run, step, gpus, on_line=on_line, stop=stop)
        signal.raise_signal(signal.SIGINT)
        return outcome

    monkeypatch.setattr(RecordedEngine, "run", stopped_after)
    with pytest.raises(Interrupted, match="--resume"):
        drive(experiment(source, tmp_path / "run", "a", "b", quiet=True))
    assert outcomes(tmp_path / "run") == {"a": "ok", "b": "open"}
    assert not Run.open(tmp_path / "run").open_steps()


def test_what_comes_after_the_run_is_called_only_when_all_succeeded(tmp_path):
    seen = []
    source = recording(tmp_path / "source", {"a": OK, "b": KILLED})
    drive(experiment(source, tmp_path / "one", "a", quiet=True, after=seen.append))
    with pytest.raises(StepFailed):
        drive(experiment(source, tmp_path / "two", "b", quiet=True, after=seen.append))
    assert seen == [tmp_path / "one"]


def test_a_dry_run_shows_the_recording_and_writes_nothing(tmp_path, capsys):
    source = recording(tmp_path / "source", {"a": OK})
    drive(experiment(source, tmp_path / "run", "a", dry_run=True, json=True))
    plan = json.loads(capsys.readouterr().out)
    assert plan["engine"] == "recorded" and plan["steps"][0]["starts"]["played back from"] == str(
        tmp_path / "source"
    )
    assert not (tmp_path / "run").exists()


def test_stop_closes_the_steps_that_a_dead_driver_left_open(tmp_path, capsys):
    source = recording(tmp_path / "source", {"a": OK})
    drive(experiment(source, tmp_path / "run", "a", quiet=True))
    Run.open(tmp_path / "run").begin(a_step("a"))
    stop_run(tmp_path / "run", Console())
    assert outcomes(tmp_path / "run") == {"a": "interrupted"}
    assert "no process drives this run" in capsys.readouterr().err


FINDINGS = {
    "verdict": ["fine"],
    "status": "ok",
    "files": ["/out/report.html"],
    "terminal": "see /out/report.html",
    "lacking": [],
}


class InImage(RecordedEngine):
    """Analyses in an image, as the docker engine does: what it prints and leaves is made here."""

    name = "recorded"
    lines = ("loading", json.dumps(FINDINGS))

    def analysis_image(self):
        return ImageRecord(name="cpu", ref="localhost/lab/cpu")

    def run_analysis(self, run, step, ours, *, on_line, stop):
        (run.root / step.folder / "out" / "report.html").write_text("the page")
        for line in self.lines:
            on_line(line)
        return Outcome(status=Status.ok)


def test_an_engine_with_an_analysis_image_analyses_there_and_the_results_move_into_the_run(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(engines.ENGINES, "recorded", f"{__name__}:InImage")
    source = recording(tmp_path / "source", {"a": OK})
    drive(experiment(source, tmp_path / "run", "a", analysis="auto"))
    assert (tmp_path / "run/report.html").read_text() == "the page"
    assert capsys.readouterr().out == f"see {tmp_path}/run/report.html\n"
    assert not (tmp_path / "run/.analysis").exists()


def test_an_analysis_image_that_prints_no_findings_is_an_error_and_the_run_stays(tmp_path, monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "recorded", f"{__name__}:InImage")
    monkeypatch.setattr(InImage, "lines", ("Segmentation fault",))
    source = recording(tmp_path / "source", {"a": OK})
    with pytest.raises(EngineError, match="--analysis host"):
        drive(experiment(source, tmp_path / "run", "a", analysis="auto", quiet=True))
    assert outcomes(tmp_path / "run") == {"a": "ok"}


def test_an_engine_that_lab_does_not_have_is_refused(tmp_path):
    source = recording(tmp_path / "source", {"a": OK})
    made = experiment(source, tmp_path / "run", "a", quiet=True)
    with pytest.raises(UsageError, match="unknown engine 'nosuch'"):
        drive(msgspec.structs.replace(made, options=msgspec.structs.replace(made.options, engine="nosuch")))
