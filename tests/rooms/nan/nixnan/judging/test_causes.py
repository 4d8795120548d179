"""Causes with their confidence."""

from __future__ import annotations

from lab.rooms.nan.nixnan.judging.summary import summary
from tests.rooms.nan.nixnan.nixgen import error


def test_a_text_that_stands_for_several_instructions_is_less_sure(made):
    product = "FMUL R1, R2, R3"
    lines = [error("-infinity", product, operand=2), error("NaN", product), error("NaN", product)]
    (row,) = summary(made(*lines))["causes"]
    assert row["confidence"] == "medium" and "share this text" in row["why"]
