"""Both levels of one experiment become one row."""

from __future__ import annotations

import json

import pandas as pd
import pytest

pytest.importorskip("matplotlib")
from lab.rooms.nan.gather import gather
from tests.rooms.nan.folders import log, rows, tables
from tests.rooms.nan.made import result, run_of


def test_a_quantized_experiment_that_cannot_run_here_is_skipped_beside_its_twin(tmp_path):
    found = rows(
        tables(
            tmp_path / "r",
            {name: result(name, skipped_quant="no bitsandbytes") for name in ("baseline", "8bit", "eager")},
        )
    )
    assert found["baseline"]["rank"] == found["eager"]["rank"] == 1
    for name in ("baseline (4-bit)", "8bit"):
        assert found[name]["status"] == "skipped" and pd.isna(found[name]["rank"])
        assert found[name]["reason"] == "no bitsandbytes; its unquantized twin ran"


def test_two_runs_of_one_experiment_become_one_row_with_both_levels(tmp_path):
    python = run_of(tmp_path / "p", {"baseline": result("baseline")})
    unwatched = result("baseline")
    del unwatched["watch"]
    sass = run_of(tmp_path / "s", {"baseline": unwatched}, sass=True)
    log(tmp_path / "s/steps/baseline", "x", 4)
    (tmp_path / "s/steps/baseline/claude_x.nixnan").rename(tmp_path / "s/steps/baseline/nixnan.log")
    (one,) = gather([tmp_path / "p", tmp_path / "s"], [python, sass], lambda _: None)
    assert one.watch and one.log is not None and one.log.error_lines == 4


def test_kernels_that_the_options_chose_are_known_to_the_verdict(tmp_path):
    run = run_of(tmp_path / "s", {"baseline": result("baseline")}, sass=True)
    flags = {"only_kernels": ["void softmax"], "not_kernels": []}
    (tmp_path / "s/steps/baseline/nixnan.json").write_text(json.dumps({"flags": flags}))
    (one,) = gather([tmp_path / "s"], [run], lambda _: None)
    assert (one.only_kernels, one.not_kernels, one.inventory) == (("void softmax",), (), False)


def test_what_nixnan_was_told_to_look_at_survives_the_join_of_two_runs(tmp_path):
    """An inventory beside a watched run checked no kernel: its zero is unknown, not no."""
    python = run_of(tmp_path / "p", {"baseline": result("baseline")})
    sass = run_of(tmp_path / "s", {"baseline": result("baseline")}, sass=True)
    (tmp_path / "s/steps/baseline/nixnan.json").write_text(json.dumps({"flags": {"inventory": True}}))
    (experiment,) = gather([tmp_path / "p", tmp_path / "s"], [python, sass], lambda _: None)
    assert experiment.inventory
