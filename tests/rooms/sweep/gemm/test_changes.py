"""What a comparison claims, and what it must not claim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab.rooms.sweep.gemm.changes import (
    Sweep,
    compared_in_words,
    config_changes,
    environments,
    least_p,
    not_compared,
    repeats_needed,
)
from tests.rooms.sweep.made import sweep as made

_SAME = pd.DataFrame(columns=["what", "state"])


def one(label: str, totals_ms: dict[tuple[int, int], list[float]], **facts: str) -> Sweep:
    return Sweep(label, Path(label), made(totals_ms), facts)


def judgement(before: list[float], after: list[float]) -> str:
    frame = config_changes(one("a", {(256, 28): before}), [one("b", {(256, 28): after})])
    return str(frame["judgement"][0])


def test_three_repeats_cannot_reach_significance_and_the_page_says_so() -> None:
    assert judgement([100.0, 101.0, 102.0], [50.0, 51.0, 52.0]) == "too few repeats"


def test_over_many_configurations_the_page_says_that_no_difference_could_be_shown_and_what_could() -> None:
    cells = [(threads, channel) for threads in (256, 512) for channel in (28, 42, 56, 70)]
    before = {cell: [100.0, 101.0, 102.0, 103.0] for cell in cells}
    after = {cell: [150.0, 151.0, 152.0, 153.0] for cell in cells}
    frame = config_changes(one("a", before), [one("b", after)])
    assert set(frame["judgement"]) == {"too few repeats"}
    assert frame["least_p_holm"].tolist() == pytest.approx([8 * 2 / 70] * 8)
    text = compared_in_words(frame.assign(other="b"), _SAME, one("a", {}), [one("b", {})])[0]
    assert "over 8 comparisons their least p is 0.23 after Holm, 0.05 would take 6 repeats of each" in text
    assert "4 fresh runs of one pair of settings each" in text


@pytest.mark.parametrize(("comparisons", "repeats"), [(1, 4), (3, 5), (6, 5), (7, 6), (28, 7)])
def test_the_repeats_needed_are_those_of_the_exact_test(comparisons: int, repeats: int) -> None:
    assert repeats_needed(comparisons) == repeats


def test_clear_repeats_are_slower_or_faster() -> None:
    before, after = [100.0, 101.0, 102.0, 103.0], [150.0, 151.0, 152.0, 153.0]
    assert judgement(before, after) == "slower"
    assert judgement(after, before) == "faster"


def test_what_differs_in_the_environment_comes_first() -> None:
    frame = environments([one("a", {}, torch="2.11", driver="1"), one("b", {}, torch="2.11")])
    assert frame["what"].tolist() == ["driver", "torch"]
    assert frame["b"].tolist() == ["not recorded", "2.11"]


QUIET, SLOW = [100.0, 101.0, 102.0, 103.0], [150.0, 151.0, 152.0, 153.0]


def told(base: Sweep, *others: Sweep) -> tuple[str, list[str]]:
    """The verdict in one text, and what is missing."""
    frame = config_changes(base, others)
    environment = environments([base, *others])
    words = compared_in_words(frame, environment, base, others)
    return "\n".join(words), not_compared(base, others, frame)


def test_what_repeats_cannot_show_is_never_told_as_no_difference() -> None:
    five = [100.0, 101.0, 102.0, 103.0, 104.0]
    cells = {(256, 28): five, (512, 28): [90.0], (512, 42): five}
    later = {(256, 28): [50 + one for one in five], (512, 28): [99.0], (512, 42): [one + 0.5 for one in five]}
    text, _ = told(one("a", cells), one("b", later))
    assert "256t 28ch slower by 49.0 %; a step changes by +0.5 % in 1 configuration: this is within" in text
    assert "a step changes by +10.0 % in 1 configuration: with so few repeats this may be chance" in text


def test_no_difference_shown_says_what_the_repeats_leave_possible() -> None:
    text, missing = told(one("a", {(256, 28): QUIET}), one("b", {(256, 28): [100.5, 103.5, 99.5, 102.5]}))
    assert "within the spread of the repeats, which leave -2." in text and " % possible" in text
    assert missing == []
    frame = config_changes(one("a", {(256, 28): [100.0, 102.0]}), [one("b", {(256, 28): [100.0, 102.0]})])
    low, high = frame.loc[0, ["repeats_low_percent", "repeats_high_percent"]]
    assert low == pytest.approx(-5.84, abs=0.05) and high == pytest.approx(6.2, abs=0.05)  # t = 4.303, df 2


def test_what_is_in_one_sweep_alone_is_said_and_known_to_the_exit_code() -> None:
    base, other = one("a", {(256, 28): [100.0], (512, 28): [90.0]}), one("b", {(256, 28): [101.0]})
    _, missing = told(base, other)
    assert missing == ["a and b: 1 configuration not complete in both: 512t 28ch"]


def test_copies_of_a_recording_are_no_repeats_and_no_second_sweep() -> None:
    _, missing = told(one("a", {(256, 28): QUIET}), one("b", {(256, 28): [*QUIET[:3], 200.0]}))
    assert missing == [
        "a and b: 3 total times equal to the last digit: copies of one recording, which count once"
    ]


def test_copied_repeats_within_a_sweep_count_once_and_prove_nothing() -> None:
    base, other = one("a", {(256, 28): [100.0] * 4}), one("b", {(256, 28): [50.0, 50.0, 50.0, 60.0]})
    row = config_changes(base, [other]).iloc[0]
    assert (row["repeats_base"], row["repeats_other"]) == (1, 2)
    assert row["judgement"] == "too few repeats" and np.isnan(row["p_value"])
    assert row["step_other_ms"] == 27.5  # not 25, the median with the copies
    _, missing = told(base, other)
    assert [text[:2] for text in missing if "No repeat of its own" in text] == ["a:", "b:"]


def test_sweeps_of_other_numbers_of_steps_are_never_faster_or_slower() -> None:
    other = one("b", {(256, 28): SLOW})
    other.tables.timeline["steps"] = 3
    frame = config_changes(one("a", {(256, 28): QUIET}), [other, one("c", {(256, 28): SLOW})])
    assert frame["judgement"].tolist() == ["other numbers of steps", "slower"]
    text, missing = told(one("a", {(256, 28): QUIET}), other)
    assert "they hold different numbers of steps, and do not compare" in text
    assert "differ over ranks" not in text and "different numbers of steps" in missing[0]


def test_many_sweeps_are_corrected_for_together() -> None:
    base = one("a", {(256, 28): QUIET})
    others = [one(name, {(256, 28): [value + n / 10 for value in SLOW]}) for n, name in enumerate("bcd")]
    assert config_changes(base, others[:1])["judgement"].tolist() == ["slower"]
    assert set(config_changes(base, others)["judgement"]) == {"too few repeats"}


@pytest.mark.parametrize(("base", "other", "p"), [(3, 3, 0.1), (3, 4, 1 / 35), (2, 9, 1 / 55), (1, 0, 1.0)])
def test_the_least_p_is_that_of_the_clearest_repeats(base: int, other: int, p: float) -> None:
    """Unequal numbers have no mirror image, so that three against four can show a difference."""
    assert least_p(base, other) == pytest.approx(p)
    if other:
        values = [list(100.0 + np.arange(base)), list(200.0 + np.arange(other))]
        frame = config_changes(one("a", {(256, 28): values[0]}), [one("b", {(256, 28): values[1]})])
        assert frame["p_value"][0] == pytest.approx(p)


def test_hosts_that_set_the_pace_come_before_any_comparison_and_what_was_not_recorded_after() -> None:
    base = replace(one("a", {(256, 28): QUIET}), host_bound="The hosts set the pace.")
    text, _ = told(base, one("b", {(256, 28): SLOW}, **{"host name": "n1"}))
    assert text.startswith("a: The hosts set the pace.")
    assert "a: not recorded by lab: host, driver, clocks" in text and "b: not recorded" not in text
