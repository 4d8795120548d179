"""What runs where something is missing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from tests.rooms.nan.workload.runs import run  # noqa: E402


def test_the_baseline_that_cannot_be_quantized_here_runs_as_its_twin_and_says_so(tmp_path):
    result = run(tmp_path, "baseline")
    assert "4bit" in result["skipped_quant"] and result["effective"]["quant"] == "none"
    assert "8bit" in run(tmp_path, "8bit")["skipped_quant"]
