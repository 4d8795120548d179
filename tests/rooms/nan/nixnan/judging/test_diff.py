"""What two logs have in common, beyond the noise of a repeat."""

from __future__ import annotations

import json

from lab.rooms.nan.nixnan.judging.diff import diff
from tests.rooms.nan.nixnan.examples import AGAIN, REPEATED, TWINS, A, B
from tests.rooms.nan.nixnan.nixgen import error


def test_a_difference_is_judged_by_the_baselines_own_repeat(made):
    a, again, b = made(*A), made(*AGAIN), made(*B)
    result = diff(a, b, again)
    assert result["beyond_noise"] is True and (result["appeared_count"], result["vanished_count"]) == (30, 19)
    assert diff(a, made(*A[1:]), again)["beyond_noise"] is False
    assert diff(a, b)["beyond_noise"] is None and "Not judged" in diff(a, b)["verdict"]
    assert json.loads(json.dumps(result)) == result


def test_other_registers_are_a_move_and_other_kinds_a_change(made):
    a = made(error("NaN", "FADD R1, R2, R3"), error("NaN", "FMUL R1, R2, R3"))
    result = diff(a, made(error("NaN", "FADD R7, R8, R9"), error("infinity", "FMUL R1, R2, R3")))
    assert (result["appeared_count"], result["vanished_count"], result["moved_count"]) == (1, 1, 1)
    assert result["changed_count"] == 1


def test_a_comparison_warns_of_logs_that_are_not_whole_and_merges_twins(made):
    result = diff(made(*TWINS, *REPEATED), made(*TWINS, *REPEATED, end=False))
    assert result["sites_a"] == 5 and result["jaccard"] == 1.0
    assert any("B is truncated" in warning for warning in result["warnings"])
    assert any("compared once" in warning for warning in result["warnings"])


def test_two_logs_without_sites_are_the_same(made):
    assert diff(made(), made(), made())["beyond_noise"] is False


PLENTY = [error("NaN", f"FADD R{n}, R2, R3", operand=1) for n in range(200)]
STORE = error("NaN", "STG.E [R2], R4", operand=1)
CHAIN = [
    error("NaN", "FMUL R1, R2, R3", function="new"),
    error("NaN", "FADD R4, R1, R3", operand=1, function="new"),
    STORE,
]


def test_a_new_birth_or_a_new_stored_nan_is_no_noise_among_hundreds_of_equal_sites(made):
    a, again = made(*PLENTY), made(*PLENTY[5:])
    for added, grade in ((CHAIN, "NaN stored"), (CHAIN[:1], "NaN born"), ([STORE], "NaN stored")):
        result = diff(a, made(*PLENTY, *added), again)
        assert result["distance"] < result["noise"]["distance"], "by the share of sites it is noise"
        assert result["beyond_noise"] is True and grade in result["verdict"]
        assert next(row["new"] for row in result["grades"] if row["grade"] == grade) == 1


def test_a_birth_that_comes_and_goes_between_equal_runs_is_noise(made):
    a, again = made(*PLENTY, CHAIN[0]), made(*PLENTY)
    other = error("NaN", "FMUL R9, R2, R3", function="new")
    assert diff(a, made(*PLENTY, other), again)["beyond_noise"] is False
    many = [error("NaN", f"FMUL R{n}, R2, R3", function="new") for n in range(20, 23)]
    assert diff(a, made(*PLENTY, *many), again)["beyond_noise"] is True


def test_a_repeat_that_did_not_come_to_its_end_is_no_noise_floor(made):
    a, b, cut = made(*PLENTY), made(*PLENTY[:100], *CHAIN[1:2]), made(*PLENTY[:20], end=False)
    result = diff(a, b, cut)
    assert result["noise"] is None and result["beyond_noise"] is None and "Not judged" in result["verdict"]
    assert any("it gives no noise floor" in warning for warning in result["warnings"])
    assert diff(a, made(*PLENTY, STORE), cut)["beyond_noise"] is True, "A has no stored NaN anywhere"


def test_a_log_that_was_cut_is_not_judged_by_what_is_missing(made):
    a, again = made(*PLENTY), made(*PLENTY)
    assert diff(a, made(*PLENTY[:50], end=False), again)["beyond_noise"] is None
    assert diff(a, made(*PLENTY[:50], STORE, end=False), again)["beyond_noise"] is True
    assert diff(made(*PLENTY[:50], end=False), made(*PLENTY, STORE), again)["beyond_noise"] is None


def test_the_same_sites_with_worse_numbers_are_a_difference(made):
    small = [error("subnormal", f"FADD R{n}, R2, R3", operand=1) for n in range(40)]
    for worse in ("NaN", "infinity"):
        worst = [error(worse, f"FADD R{n}, R2, R3", operand=1) for n in range(40)]
        result = diff(made(*small), made(*worst), made(*small))
        assert result["jaccard"] == 1.0 and result["beyond_noise"] is True
        mixed = diff(made(*small, *CHAIN), made(*small[:-3], *worst[-3:], *CHAIN), made(*small, *CHAIN))
        assert mixed["jaccard"] == 1.0 and mixed["beyond_noise"] is True
