"""The page of every command says where its numbers come from."""

from __future__ import annotations

import json

import pytest

from lab.core.manifest import Kind
from lab.core.run import Run
from lab.core.step import Outcome, Status, Step
from tests.core.test_manifest import a_manifest

pytest.importorskip("pandas")

CONFIGS = {
    "check": {"command": "check"},
    "train": {"command": "train", "data": "synthetic"},
    "diagnose": {"command": "diagnose", "tested": "torch", "reference": "naive"},
}


@pytest.mark.parametrize("command", CONFIGS)
def test_a_run_that_was_played_back_says_so_on_its_page(tmp_path, command):
    from lab.rooms.semicrf.findings import analyse_semicrf

    labels = {"backend": "torch", "model": "linear", "part": "probes"}
    step = Step(name="one", argv=("python",), folder="steps/one", labels=labels)
    manifest = a_manifest(step)
    manifest.room, manifest.kind, manifest.config = "semicrf", Kind.replayed, CONFIGS[command]
    run = Run.create(tmp_path / "run", manifest)
    run.begin(step)
    run.finish(step, Outcome(status=Status.failed, reason="planted"))
    analyse_semicrf(run.root, run.root, run, lambda _: None)
    page = (tmp_path / "run/report.html").read_text()
    assert '<span class="kind made">replayed<' in page and '<span class="kind">measured<' not in page


def checked(tmp_path, **ran):
    """The verdict of a check: per backend asked for, the one that ran and passed; None was killed."""
    from lab.rooms.semicrf.findings import analyse_semicrf

    steps = [
        Step(name=f"check-{asked}", argv=("python",), folder=f"steps/{asked}", labels={"backend": asked})
        for asked in ran
    ]
    manifest = a_manifest(*steps)
    manifest.room, manifest.config = "semicrf", CONFIGS["check"]
    run = Run.create(tmp_path / "run", manifest)
    row = {
        "check": "log Z",
        "shape": "",
        "dtype": "",
        "value": 0.0,
        "limit": 1.0,
        "verdict": "pass",
        "text": "",
    }
    for step in steps:
        run.begin(step)
        backend = ran[step.labels["backend"]]
        if backend:
            (run.folder(step) / "checks.json").write_text(json.dumps({"backend": backend, "checks": [row]}))
        status = Status.ok if backend else Status.failed
        run.finish(step, Outcome(status=status, reason="" if backend else "killed"))
    return analyse_semicrf(run.root, run.root, run, lambda _: None).verdict


def test_a_check_names_the_backend_that_was_the_default_and_what_it_left_out(tmp_path):
    passed, left_out = checked(tmp_path, auto="native", torch="torch")
    assert passed == "All 2 checks of auto (native), torch passed on this device."
    assert left_out == "Not covered by this run: triton."


def test_a_default_that_fell_to_torch_or_was_killed_does_not_pass_for_covered(tmp_path):
    assert checked(tmp_path / "a", auto="torch", torch="torch")[-1].endswith(": native, triton.")
    killed = checked(tmp_path / "b", auto=None, torch="torch")
    assert "1 of 2 checks" in killed[0] and "killed" in killed[1] and killed[-1].endswith(": native, triton.")
