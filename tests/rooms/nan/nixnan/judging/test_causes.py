"""The cause of each pattern of operands."""

from __future__ import annotations

import pytest

from lab.rooms.nan.nixnan.judging.causes import causes
from lab.rooms.nan.nixnan.log import instructions
from tests.rooms.nan.nixnan import nixgen
from tests.rooms.nan.nixnan.examples import BIRTH
from tests.rooms.nan.nixnan.nixgen import error

RULES = {
    "opposite infinities by a minus in the text": (BIRTH, "inf - inf", "high", True),
    "the same outside a softmax": (
        [error("infinity", "FADD R2, -R7, R2", operand=n, function="void add_one") for n in (1, 2)]
        + [error("NaN", "FADD R2, -R7, R2", function="void add_one")],
        "inf - inf",
        "high",
        False,
    ),
    "one infinity seen": (
        [error("infinity", operand=1, function="f"), error("NaN", function="f")],
        "inf - inf",
        "medium",
        False,
    ),
    "a subtraction compiled as a fused product": (
        [
            error("infinity", "FFMA R4, R15, UR6, R16", operand=1),
            error("infinity", "FFMA R4, R15, UR6, R16", operand=3),
            error("NaN", "FFMA R4, R15, UR6, R16"),
        ],
        "inf - inf",
        "medium",
        False,
    ),
    "an infinite factor": (
        [error("-infinity", "FMUL R1, R2, R3", operand=2), error("NaN", "FMUL R1, R2, R3")],
        "0 x inf",
        "high",
        False,
    ),
    "an infinite factor of a fused product": (
        [error("infinity", "@P0 FFMA R1, R2, R3, R4", operand=1), error("NaN", "@P0 FFMA R1, R2, R3, R4")],
        "0 x inf",
        "medium",
        False,
    ),
    "an infinity written in a sum": (
        [
            error("-infinity", "DADD R2, R4, +INF", operand=1, type="f64", function="f"),
            error("NaN", "DADD R2, R4, +INF", type="f64", function="f"),
        ],
        "inf - inf",
        "high",
        False,
    ),
    "an infinity written in a sum, and nothing infinite seen": (
        [error("NaN", "DADD R2, R4, +INF", type="f64", function="f")],
        "inf - inf",
        "medium",
        False,
    ),
    "a zero that met a written infinity": (
        [error("NaN", "FMUL R2, R4, -INF", function="f")],
        "0 x inf",
        "high",
        False,
    ),
    "a written infinity that is the addend": (
        [error("NaN", "DFMA R2, R4, R6, +INF", type="f64", function="f")],
        "0 x inf",
        "medium",
        False,
    ),
    "a written infinity handed on": (
        [error("infinity", "DFMA R2, R4, R6, +INF", type="f64", function="f")],
        "constant infinity",
        "high",
        True,
    ),
    "bars make an infinity positive": (
        [
            *(error("-infinity", "FADD R2, |R4|, -R6", operand=1, function="f"),),
            *(error("infinity", "FADD R2, |R4|, -R6", operand=2, function="f"),),
            error("NaN", "FADD R2, |R4|, -R6", function="f"),
        ],
        "inf - inf",
        "high",
        False,
    ),
    "tensor cores": (
        [
            error("infinity", "HMMA.16816.F32 R0, R4, R6, R0", operand=1, type="f16"),
            error("NaN", "HMMA.16816.F32 R0, R4, R6, R0"),
        ],
        "inf in a product sum",
        "medium",
        False,
    ),
    "half overflow": ([error("infinity", "HMUL2 R1, R2, R3", type="f16")], "overflow", "high", False),
    "exponential overflow": ([error("infinity", "MUFU.EX2 R1, R2")], "overflow", "high", False),
    "reciprocal of zero": (
        [error("div0", "MUFU.RCP R1, R2", operand=1), error("infinity", "MUFU.RCP R1, R2")],
        "division by zero",
        "high",
        False,
    ),
    "reciprocal root of zero": (
        [error("div0", "MUFU.RSQ R1, R2", operand=1)],
        "division by zero",
        "high",
        True,
    ),
    "root of a negative number": ([error("NaN", "MUFU.RSQ R1, R2")], "outside the domain", "medium", False),
    "a constant": ([error("NaN", "MUFU.RSQ R3, -QNAN", operand=1)], "constant NaN", "high", True),
    "no reason to be seen": ([error("NaN", "FADD R1, R2, R3")], "born unseen", "low", False),
    "a store": ([error("NaN", "STG.E [R2.64], R3", operand=1)], "stored NaN", "high", False),
    "a mask": ([error("-infinity", "FMUL R1, R2, R3", operand=n) for n in (0, 1)], "masking", "medium", True),
    "subnormals": ([error("subnormal", "HMUL2 R1, R2, R3", type="f16")], "subnormal", "high", True),
    "infinities first, then NaN": (
        [error("infinity", operand=1), error("infinity", operand=2), error("NaN"), error("NaN", operand=1)],
        "perhaps inf - inf",
        "medium",
        False,
    ),
    "NaN first, then infinities": (
        [error("NaN", operand=1), error("NaN"), error("infinity", operand=1), error("infinity", operand=2)],
        "perhaps inf - inf",
        "low",
        False,
    ),
}


@pytest.mark.parametrize("lines, cause, confidence, benign", RULES.values(), ids=RULES)
def test_the_cause_of(made, lines, cause, confidence, benign):
    (row,) = causes(instructions(made(*lines)))
    assert (row["cause"], row["confidence"], row["benign"]) == (cause, confidence, benign), row
    assert row["raw"] in lines and row["line"] > len(nixgen.BANNER)


def test_a_text_that_stands_for_several_instructions_is_less_sure(made):
    product = "FMUL R1, R2, R3"
    lines = [error("-infinity", product, operand=2), error("NaN", product), error("NaN", product)]
    (row,) = causes(instructions(made(*lines)))
    assert row["confidence"] == "medium" and "share this text" in row["why"]
