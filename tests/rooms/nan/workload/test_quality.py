"""The distance to the baseline's distribution."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from lab.rooms.nan.workload.quality import compare  # noqa: E402
from tests.rooms.nan.workload.runs import run  # noqa: E402


def test_quality_is_measured_on_the_baselines_own_tokens(tmp_path):
    run(tmp_path, "baseline")
    result = run(tmp_path, "bfloat16")["quality"]
    assert result["positions"] == 3 and 0 <= result["kl_mean"] < 0.01 and result["reason"] == ""
    assert (
        run(tmp_path / "elsewhere", "bfloat16")["quality"]["reason"]
        == "no result of the baseline beside this one"
    )


def test_the_distance_of_equal_logits_is_zero_and_infinite_ones_are_left_out():
    logits = np.random.default_rng(0).normal(size=(4, 9))
    broken = logits.copy()
    broken[1] = np.nan
    assert compare(logits, logits)["kl_max"] == pytest.approx(0)
    assert compare(logits, broken)["finite_positions"] == 3
    assert compare(logits, np.full_like(logits, np.nan))["kl_mean"] is None
