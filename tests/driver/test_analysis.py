from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.core.manifest import ImageRecord
from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.step import Outcome, Status
from lab.driver import analysis
from lab.driver.analysis import _summary
from lab.errors import EngineError
from lab.terminal.console import Console
from tests.core.test_manifest import a_manifest, a_run


def image(ref: str, wheel: str | None) -> ImageRecord:
    return ImageRecord(name="cpu", ref=ref, wheel_sha256=wheel)


def summary(*lines: str, status: Status = Status.ok):
    run = Run(Path("experiments/r"), a_manifest())
    outcome = Outcome(status=status, reason="why", tail=("the last line",))
    return _summary(list(lines), outcome, run, image("localhost/lab/cpu", None))


GOOD = json.dumps(
    {
        "verdict": ["v"],
        "status": "ok",
        "lacking": [],
        "files": ["/out/report.html"],
        "terminal": "report: /out/report.html",
    }
)


def test_the_containers_paths_become_the_hosts():
    findings = summary("noise", GOOD, "more noise")
    assert (
        findings.files == [Path("experiments/r/report.html")]
        and findings.terminal == "report: experiments/r/report.html"
    )


@pytest.mark.parametrize("line", ["noise", '{"verdict": []}', "{broken"])
def test_an_analysis_without_findings_is_an_error_with_its_last_words_and_no_silent_fallback(line):
    with pytest.raises(EngineError, match="the last line") as caught:
        summary(line, status=Status.oom)
    assert "--analysis host" in str(caught.value)


def test_files_that_changed_since_they_were_recorded_are_no_complete_analysis(tmp_path, monkeypatch):
    run = a_run(tmp_path / "r")
    step = run.manifest.steps[0].step
    run.begin(step)
    (run.folder(step) / "trace.json").write_text("{}")
    run.finish(step, Outcome(status=Status.ok, seconds=1.0))
    house = SimpleNamespace(analyse=lambda *_: Findings(["v"], "ok", [], "", lacking=["a rank"]))
    monkeypatch.setattr(analysis, "room", lambda _: house)
    console = Console(quiet=True)
    assert analysis.analyse(run.root, None, console).lacking == ["a rank"]
    (run.folder(step) / "trace.json").write_text("[]")
    first, second = analysis.analyse(run.root, None, console).lacking
    assert first == "a rank" and second.startswith("1 file not as recorded (a/trace.json): ")
