"""A crash never wins, and each verdict is the furthest link of its chain."""

from __future__ import annotations

import pandas as pd
import pytest

pytest.importorskip("matplotlib")
from tests.rooms.nan.folders import rows, tables
from tests.rooms.nan.made import birth, result


def test_what_crashed_was_skipped_or_changed_nothing_has_no_rank(tmp_path):
    found = rows(
        tables(
            tmp_path / "r",
            {
                "baseline": result("baseline"),
                "bfloat16": None,
                "attention_clip": result("attention_clip", applied="no-effect"),
                "layernorm_eps": result("layernorm_eps", applied="invalid"),
                "eager": result("eager", applied="applied", first=birth(), bad_steps=(0,)),
            },
            failed={"bfloat16": "exit code 1"},
        )
    )
    assert found["baseline"]["rank"] == 1 and found["eager"]["rank"] == 2
    for name, status in {
        "bfloat16": "failed",
        "attention_clip": "no-effect",
        "layernorm_eps": "invalid",
    }.items():
        assert pd.isna(found[name]["rank"]) and found[name]["status"] == status
    assert (
        found["eager"]["verdict"] == "reached-logits"
        and found["bfloat16"]["verdict"] == "inconclusive (failed)"
    )


def test_a_nan_that_stays_in_a_module_is_told_apart_from_one_in_the_logits(tmp_path):
    found = rows(tables(tmp_path / "r", {"baseline": result("baseline", first=birth())}))
    assert found["baseline"]["verdict"] == "reached-module"
