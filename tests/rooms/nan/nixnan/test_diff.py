"""What two logs have in common, beyond the noise of a repeat."""

from __future__ import annotations

import json

from lab.rooms.nan.nixnan.diff import diff
from tests.rooms.nan.nixnan.examples import AGAIN, REPEATED, TWINS, A, B
from tests.rooms.nan.nixnan.nixgen import error


def test_a_difference_is_judged_by_the_baselines_own_repeat(made):
    a, again, b = made(*A), made(*AGAIN), made(*B)
    result = diff(a, b, again)
    assert result["beyond_noise"] is True and (result["appeared_count"], result["vanished_count"]) == (30, 19)
    assert result["in_noise_count"] == 1 and result["noise"]["flickering"] == 2
    assert diff(a, made(*A[1:]), again)["beyond_noise"] is False
    assert diff(a, b)["beyond_noise"] is None and "Not judged" in diff(a, b)["verdict"]
    rows = {
        row["category"]: (row["appeared"], row["vanished"], row["in_noise"]) for row in result["by_category"]
    }
    assert rows == {"attention": (0, 19, 1), "gemm": (30, 0, 0)}
    assert json.loads(json.dumps(result)) == result


def test_other_registers_are_a_move_and_other_kinds_a_change(made):
    a = made(error("NaN", "FADD R1, R2, R3"), error("NaN", "FMUL R1, R2, R3"))
    result = diff(a, made(error("NaN", "FADD R7, R8, R9"), error("infinity", "FMUL R1, R2, R3")))
    assert (result["appeared_count"], result["vanished_count"], result["moved_count"]) == (1, 1, 1)
    assert result["changed_count"] == 1 and result["changed"][0]["kinds_before"] == {"NaN": 1}


def test_a_comparison_warns_of_logs_that_are_not_whole_and_merges_twins(made):
    result = diff(made(*TWINS, *REPEATED), made(*TWINS, *REPEATED, end=False))
    assert result["sites_a"] == 5 and result["jaccard"] == 1.0
    assert any("B is truncated" in warning for warning in result["warnings"])
    assert any("compared once" in warning for warning in result["warnings"])


def test_two_logs_without_sites_are_the_same(made):
    assert diff(made(), made(), made())["beyond_noise"] is False
