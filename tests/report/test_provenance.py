"""Where the numbers of a page come from."""

from __future__ import annotations

from pathlib import Path

from lab.core.manifest import ImageRecord, Kind, Lab
from lab.core.provenance import lab_with_content
from lab.report.provenance import provenance
from tests.core.test_manifest import a_manifest


def test_a_measured_run_shows_its_host():
    groups = provenance(Path("run"), a_manifest())
    assert groups["Host"] == {"name": "h"} and "played back from" not in groups["Run"]


def test_a_replay_does_not_pass_this_machine_off_as_the_one_that_was_measured():
    manifest = a_manifest()
    manifest.kind, manifest.container, manifest.env = Kind.replayed, {"recording": "/r"}, {"NCCL_X": "1"}
    groups = provenance(Path("run"), manifest)
    assert groups["Run"]["played back from"] == "/r"
    assert not {"Host", "Environment"} & groups.keys()
    assert groups["Host (of the machine that played it back)"] == {"name": "h"}


def test_a_page_names_the_lab_and_the_image_that_made_it_and_not_those_of_an_earlier_analysis(monkeypatch):
    """`lab analyze` of an old run: its manifest tells where the run's own driver had analysed it."""
    monkeypatch.delenv("LAB_IMAGE", raising=False)
    manifest = a_manifest()
    manifest.analysis_image = ImageRecord(name="cpu", ref="localhost/lab/cpu", id="sha256:1")
    manifest.lab = Lab(version="0.0.1", commit="c" * 40, sha256="1" * 64)
    ours = lab_with_content()
    groups = provenance(Path("run"), manifest)
    by = groups["Analysed by"]
    assert by["lab"].startswith(ours.version) and "c" * 40 not in by["lab"]
    assert by["lab's content"] == ours.sha256[:16] and "localhost/lab/cpu" not in str(groups)
    manifest.lab = ours
    monkeypatch.setenv("LAB_IMAGE", "cpu")
    by = provenance(Path("run"), manifest)["Analysed by"]
    assert by["lab"] == "the run's own" and by["image"] == "localhost/lab/cpu sha256:1"
