"""The whole analysis, from folders to the page."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")
from lab.core.provenance import lab_with_content
from lab.errors import MissingError
from lab.rooms.nan.findings import analyse_nan, provenance
from tests.rooms.nan.made import birth, module, result, run_of


def test_the_whole_analysis_leaves_a_page_tables_and_figures(tmp_path):
    bad = result("eager", applied="applied", first=birth(), bad_steps=(0,), text="<script>alert(1)</script>")
    results = {
        "baseline": result("baseline", _modules=[module("model.layers.0.mlp", subnormal=2, absmax=3.5)]),
        "eager": {**bad, "_modules": [module("model.layers.2.self_attn", nan=64, first_bad_step=0)]},
    }
    run = run_of(tmp_path / "r", results)
    found = analyse_nan([tmp_path / "r"], tmp_path / "out", [run], lambda _: None)
    assert all(path.exists() for path in found.files) and found.lacking == [] and found.status == "warn"
    page = (tmp_path / "out/report.html").read_text()
    assert "First producer, eager" in page and "layer 2" in page and "<script>alert" not in page
    assert {path.name for path in (tmp_path / "out/tables").iterdir()} >= {
        "experiments.csv",
        "births.csv",
        "chain.csv",
        "layers.csv",
    }


def test_asking_for_the_instruction_level_makes_its_absence_an_error(tmp_path):
    run = run_of(tmp_path / "r", {"baseline": result("baseline")})
    found = analyse_nan([tmp_path / "r"], tmp_path / "out", [run], lambda _: None, sass=True)
    assert found.lacking == ["baseline: no log of nixnan"]


def test_a_folder_without_experiments_is_an_error(tmp_path):
    with pytest.raises(MissingError, match="no experiment of the nan room"):
        analyse_nan([tmp_path], tmp_path / "out", [None], lambda _: None)


def test_a_page_names_the_lab_that_measured_and_the_lab_that_analysed(tmp_path):
    ours = lab_with_content()
    run = run_of(tmp_path / "r", {"baseline": result("baseline")})
    analyse_nan([tmp_path / "r"], tmp_path / "out", [run], lambda _: None)
    page = (tmp_path / "out/report.html").read_text()
    assert "Analysed by" in page and ours.sha256[:16] in page
    (groups,) = [provenance([tmp_path / "r"], [run.manifest])]
    assert groups["Analysed by"]["lab"].startswith(ours.version) and groups["Run"]["id"] == run.manifest.id


def test_of_several_folders_each_is_named_also_where_their_names_are_equal(tmp_path):
    runs = [run_of(tmp_path / name, {"baseline": result("baseline")}) for name in ("a/run", "b/run", "c")]
    groups = provenance([run.root for run in runs], [run.manifest for run in runs])
    analysers = {title for title in groups if title.startswith("Analysed by")}
    assert analysers == {f"Analysed by {tmp_path}/a/run", f"Analysed by {tmp_path}/b/run", "Analysed by c"}
    mixed = provenance([run.root for run in runs[1:]], [None, runs[2].manifest])
    assert "Recording run" in mixed and "Run c" in mixed
