"""The page of every command says where its numbers come from."""

from __future__ import annotations

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
