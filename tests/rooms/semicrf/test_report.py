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
    "diagnose": {"command": "diagnose", "tested": "auto"},
}


@pytest.mark.parametrize("command", CONFIGS)
def test_a_run_that_was_played_back_says_so_on_its_page(tmp_path, command):
    from lab.rooms.semicrf.report import analyse_semicrf

    labels = {"backend": "torch", "model": "linear", "part": "probes"}
    step = Step(name="one", argv=("python",), folder="steps/one", labels=labels)
    manifest = a_manifest(step)
    manifest.room, manifest.kind, manifest.config = "semicrf", Kind.replayed, CONFIGS[command]
    run = Run.create(tmp_path / "run", manifest)
    run.begin(step)
    run.finish(step, Outcome(status=Status.failed, reason="planted"))
    analyse_semicrf(run.root, run, lambda _: None)
    page = (tmp_path / "run/report.html").read_text()
    assert '<span class="kind made">replayed<' in page and '<span class="kind">measured<' not in page


def checked(tmp_path, **ran):
    """The verdict of a check: per backend asked for, the one that ran and passed; None was killed."""
    from lab.rooms.semicrf.report import analyse_semicrf

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
    return analyse_semicrf(run.root, run, lambda _: None).verdict


def test_a_check_names_the_backend_that_was_the_default_and_what_it_left_out(tmp_path):
    passed, left = checked(tmp_path / "a", auto="native", torch="torch")
    assert passed == "All 2 checks of auto (native), torch passed on this device."
    assert left.startswith("Not covered by this run: any other device, scores of single segments, ")
    assert "Not covered by this run: torch, any other device, " in checked(tmp_path / "b", auto="native")[1]


def test_a_default_that_fell_to_torch_or_was_killed_does_not_pass_for_covered(tmp_path):
    assert checked(tmp_path / "a", auto="torch", torch="torch")[-1].startswith(
        "Not covered by this run: native, "
    )
    killed = checked(tmp_path / "b", auto=None, torch="torch")
    assert "1 of 2 checks" in killed[0] and "killed" in killed[1]
    assert killed[-1].startswith("Not covered by this run: native, ")


def diagnosed(tmp_path, **ran):
    """The verdict of a diagnosis that ran `ran` ("tested", "reference", "device") and found nothing."""
    from lab.rooms.semicrf.report import analyse_semicrf

    steps = [Step(name=p, argv=("python",), folder=f"steps/{p}", labels={"part": p}) for p in ("probes",)]
    manifest = a_manifest(*steps)
    manifest.room, manifest.config = "semicrf", CONFIGS["diagnose"]
    run = Run.create(tmp_path / "run", manifest)
    for step in steps:
        run.begin(step)
        row = {"probe": "a probe", "cause": "kernel", "clean": True, "value": 0, "limit": 0, "text": "fine"}
        probes = [{**row, "backend": name} for name in (ran["tested"], ran["reference"])]
        found = {"probes": probes, "reproducer": None}
        (run.folder(step) / f"{step.name}.json").write_text(json.dumps({**ran, **found}))
        run.finish(step, Outcome(status=Status.ok))
    return analyse_semicrf(run.root, run, lambda _: None).verdict


def test_a_diagnosis_says_what_ran_and_what_it_did_not_cover(tmp_path):
    told = diagnosed(tmp_path / "a", tested="native", reference="torch", device="cpu")
    assert told[0] == "Nothing was found. Looked at: a probe."
    assert told[-1].startswith(
        "Covered: native and torch on this CPU, the loss and its gradient. "
        "Not covered: the compiled form for GPUs, decoding, sampling; "
    )
    plain = diagnosed(tmp_path / "b", tested="torch", reference="naive", device="cpu")[-1]
    assert "Covered: naive and torch on this CPU" in plain and "Not covered: the compiled form, " in plain
    on_gpu = diagnosed(tmp_path / "c", tested="native", reference="torch", device="cuda")[-1]
    assert "native and torch on this GPU" in on_gpu and "Not covered: decoding" in on_gpu
