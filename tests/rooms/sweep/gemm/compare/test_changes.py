"""What a comparison claims, and what it must not claim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab.rooms.sweep.gemm.compare.changes import config_changes, gemm_changes, repeats_needed
from lab.rooms.sweep.gemm.compare.sentences import compared_in_words
from lab.rooms.sweep.gemm.compare.sweeps import Sweep, environments
from tests.rooms.sweep.made import sweep as made

_NO_GEMM = pd.DataFrame(columns=["other", "ci_low_percent", "ci_high_percent"])
_SAME = pd.DataFrame(columns=["what", "state"])


def one(label: str, totals_ms: dict[tuple[int, int], list[float]], **facts: str) -> Sweep:
    return Sweep(label, Path(label), made(totals_ms), facts)


def judgement(before: list[float], after: list[float]) -> str:
    frame = config_changes(one("a", {(256, 28): before}), one("b", {(256, 28): after}))
    return str(frame["judgement"][0])


def test_one_run_each_is_never_called_faster_or_slower() -> None:
    assert judgement([100.0], [50.0]) == "one run each"


def test_three_repeats_cannot_reach_significance_and_the_page_says_so() -> None:
    assert judgement([100.0, 101.0, 102.0], [50.0, 51.0, 52.0]) == "too few repeats"


def test_over_many_configurations_the_page_says_that_no_difference_could_be_shown_and_what_could() -> None:
    cells = [(threads, channel) for threads in (256, 512) for channel in (28, 42, 56, 70)]
    before = {cell: [100.0, 101.0, 102.0, 103.0] for cell in cells}
    after = {cell: [150.0, 151.0, 152.0, 153.0] for cell in cells}
    frame = config_changes(one("a", before), one("b", after))
    assert set(frame["judgement"]) == {"too few repeats"}
    assert frame["least_p_holm"].tolist() == pytest.approx([8 * 2 / 70] * 8)
    text = compared_in_words(frame.assign(other="b"), _NO_GEMM, _SAME, one("a", {}), [one("b", {})])[0]
    assert "least p that they can give is 0.23" in text and "6 repeats of each" in text
    assert "fresh runs (4 of each)" in text


@pytest.mark.parametrize(("comparisons", "repeats"), [(1, 4), (3, 5), (6, 5), (7, 6), (28, 7)])
def test_the_repeats_needed_are_those_of_the_exact_test(comparisons: int, repeats: int) -> None:
    assert repeats_needed(comparisons) == repeats


def test_clear_repeats_are_slower_or_faster() -> None:
    before, after = [100.0, 101.0, 102.0, 103.0], [150.0, 151.0, 152.0, 153.0]
    assert judgement(before, after) == "slower"
    assert judgement(after, before) == "faster"


def test_repeats_that_overlap_show_no_difference() -> None:
    assert judgement([100.0, 104.0, 108.0, 112.0], [102.0, 106.0, 110.0, 101.0]) == "no difference shown"


def test_change_is_the_median_over_the_base_minus_one() -> None:
    frame = config_changes(one("a", {(256, 28): [100.0]}), one("b", {(256, 28): [110.0]}))
    assert frame["change_percent"][0] == pytest.approx(10)


def test_a_configuration_of_one_sweep_only_is_a_row_without_a_claim() -> None:
    frame = config_changes(one("a", {(256, 28): [100.0], (512, 28): [90.0]}), one("b", {(256, 28): [100.0]}))
    row = frame[frame["threads"] == 512].iloc[0]
    assert row["judgement"] == "not in both" and np.isnan(row["change_percent"])


def test_gemms_are_matched_by_shape_and_sorted_by_the_time_that_changed() -> None:
    frame = gemm_changes(one("a", {(256, 28): [100.0]}), one("b", {(256, 28): [130.0]}))
    assert len(frame) == 2 and frame["change_percent"].tolist() == pytest.approx([30, 30])
    assert frame["changed_us"].abs().is_monotonic_decreasing


def test_what_differs_in_the_environment_comes_first() -> None:
    frame = environments([one("a", {}, torch="2.11", driver="1"), one("b", {}, torch="2.11")])
    assert frame["what"].tolist() == ["driver", "torch"]
    assert frame["b"].tolist() == ["not recorded", "2.11"]
