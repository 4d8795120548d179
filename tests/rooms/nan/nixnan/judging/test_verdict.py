"""The verdict on one log."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lab.rooms.nan.nixnan.log import coverage, memory_nan_lines, stored_nan, totals, verdict_of
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
    assert verdict_of(made(*lines, end=end))[0] == verdict


def counted(*, memory=None, report=None, integrity="complete", **types):
    """What the verdict reads of a log: lines by type and kind."""
    counts = {**types, "memory": memory or {}}
    return SimpleNamespace(
        counts=counts, report=report, integrity=integrity, reasons=["the first", "the second"]
    )


def test_lines_of_all_types_add_up_without_those_of_the_memory_check():
    log = counted(f16={"NaN": 2, "div0": 1}, f32={"NaN": 3, "-infinity": 5}, memory={"f16": {"NaN": 7}})
    assert totals(log) == {"NaN": 5, "infinity": 0, "-infinity": 5, "subnormal": 0, "div0": 1}
    assert totals(counted()) == {"NaN": 0, "infinity": 0, "-infinity": 0, "subnormal": 0, "div0": 0}


def test_nan_in_memory_adds_up_over_types():
    assert (
        memory_nan_lines(counted(memory={"f16": {"NaN": 2}, "f32": {"infinity": 9}, "bf16": {"NaN": 3}})) == 5
    )
    assert memory_nan_lines(counted(f16={"NaN": 2})) == 0


@pytest.mark.parametrize(
    ("memory", "report", "stored"),
    [
        ({}, None, False),
        ({"f16": {"NaN": 1}}, None, True),
        ({"f16": {"NaN": 0, "infinity": 3}}, None, False),
        ({}, {"memory": {"f16": {"NaN": {"unique": 1}}}}, True),
        ({}, {"memory": {"f16": {"NaN": {}}}}, False),
        ({}, {"memory": {"f16": {"infinity": {"unique": 4}}}}, False),
        ({}, {"f16": {"NaN": {"unique": 4}}}, False),
    ],
)
def test_a_nan_is_stored_if_a_line_or_the_report_of_the_memory_check_has_one(memory, report, stored):
    assert stored_nan(counted(memory=memory, report=report)) is stored


@pytest.mark.parametrize(
    ("kinds", "verdict", "fact"),
    [
        ({"-infinity": 1}, "masked-intermediate", "0 lines of NaN and 1 of infinities"),
        (
            {"NaN": 2500, "infinity": 1200, "-infinity": 34},
            "masked-intermediate",
            "2,500 lines of NaN and 1,234 of infinities",
        ),
        ({"infinity": 1, "subnormal": 9}, "masked-intermediate", "1 of infinities"),
        ({"subnormal": 1, "div0": 1}, "subnormal-only", "Subnormal"),
        ({"div0": 1}, "masked-intermediate", "Reciprocals of zero"),
        ({}, "nothing-seen", "not prove health"),
    ],
)
def test_one_line_of_a_kind_is_enough_for_its_verdict(kinds, verdict, fact):
    got, why = verdict_of(counted(f16=kinds))
    assert got == verdict and fact in why


@pytest.mark.parametrize("kinds", [{}, {"NaN": 3}])
def test_an_incomplete_log_is_inconclusive_for_its_first_reason_unless_a_nan_was_stored(kinds):
    assert verdict_of(counted(f16=kinds, integrity="torn")) == ("inconclusive(torn)", "the first")
    got, why = verdict_of(counted(f16=kinds, integrity="torn", memory={"f16": {"NaN": 1}}))
    assert got == "stored" and "global memory" in why


def test_gaps_of_hopper_are_no_gaps_of_ampere(made):
    hopper, ampere = (" ".join(coverage(made(), compute_capability=name)) for name in ("9.0", "8.6"))
    assert "cuLaunchKernelEx: their kernels" in hopper and "their kernels" not in ampere
    assert "not prove health" in ampere and "lower bounds" in ampere
