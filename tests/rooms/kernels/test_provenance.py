"""Where the numbers of a kernels page come from."""

from __future__ import annotations

from pathlib import Path

from lab.core.manifest import ImageRecord, Lab
from lab.core.provenance import lab_with_content
from lab.core.run import Run
from lab.rooms.kernels.provenance import provenance
from tests.core.test_manifest import a_manifest


def test_a_page_names_the_lab_that_made_it_and_not_that_of_an_earlier_analysis(monkeypatch):
    monkeypatch.delenv("LAB_IMAGE", raising=False)
    manifest = a_manifest()
    manifest.analysis_image = ImageRecord(name="cpu", ref="localhost/lab/cpu", id="sha256:1")
    manifest.lab = Lab(version="0.0.1", commit="c" * 40, sha256="1" * 64)
    ours = lab_with_content()
    groups = provenance(Path("run"), Run(Path("run"), manifest))
    by = groups["Analysed by"]
    assert by["lab"].startswith(ours.version) and "c" * 40 not in by["lab"]
    assert by["lab's content"] == ours.sha256[:16] and "localhost/lab/cpu" not in str(groups)
