"""The verdict on one log."""

from __future__ import annotations

import json

import pytest

from lab.rooms.nan.nixnan.summary import summary
from tests.rooms.nan.nixnan.examples import BIRTH
from tests.rooms.nan.nixnan.nixgen import error


@pytest.mark.parametrize(
    "lines, end, verdict",
    [
        ([], True, "nothing-seen"),
        ([error("subnormal")], True, "subnormal-only"),
        (BIRTH, True, "masked-intermediate"),
        ([error("NaN", "STG.E [R2.64], R3", operand=1)], True, "stored"),
        (BIRTH, False, "inconclusive(truncated)"),
        ([error("NaN", "STG.E [R2.64], R3", operand=1)], False, "stored"),
        ([error("div0", "MUFU.RSQ R1, R2")], True, "masked-intermediate"),
    ],
)
def test_the_verdict_of_the_log_alone(made, lines, end, verdict):
    result = summary(made(*lines, end=end))
    assert result["verdict"] == verdict and json.loads(json.dumps(result)) == result


def test_zero_events_are_no_health(made):
    result = summary(made(), compute_capability="9.0")
    assert "no proof of health" in result["verdict_why"] and "lower bounds" in result["coverage"]["statement"]
    assert any("cuLaunchKernelEx" in warning for warning in result["coverage"]["warnings"])
    assert any(row["what"].startswith("HGMMA") and row["applies"] for row in result["coverage"]["unseen"])
