"""What rounding may move a tensor by, and what is said of one that is further off."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.compare.same.parallel import judge_parallel
from lab.compare.same.text import parallel_text
from lab.errors import UsageError
from lab.workload.recorder.format import Recording, Row


def row(kind, module, values, ck="0", **more):
    return Row(
        op="", ck=ck, dtype="float32", kind=kind, module=module, phase="fwd", shape=(len(values),),
        l2=sum(v * v for v in values) ** 0.5, absmax=max(values), signed=(sum(values), values[0] - values[1]),
        **more,
    )  # fmt: skip


def recording(rank, world, rows):
    meta = {"format": 2, "rank": rank, "world": world}
    return Recording(Path("x"), meta, tuple(rows), (), {"rows": len(rows)})


def test_a_tensor_that_was_not_compared_is_no_all_clear():
    rows = [row("module", name, [3.0, 1.0]) for name in ("a", "b", "c")]
    ranks = [recording(rank, 2, rows[:2]) for rank in range(2)]
    verdict = judge_parallel(recording(0, 1, rows), ranks, [], None)
    assert verdict.outcome == "undecided" and verdict.compared == 2
    assert verdict.reason == "1 tensor not compared (the ranks do not have it)"


def test_a_tensor_that_only_the_ranks_have_is_no_all_clear():
    """A module that one of them ran once more than the twin did."""
    rows = [row("module", name, [3.0, 1.0]) for name in ("a", "b")]
    ranks = [recording(0, 2, rows), recording(1, 2, [*rows, rows[0]])]
    verdict = judge_parallel(recording(0, 1, rows), ranks, [], None)
    assert verdict.outcome == "undecided" and verdict.compared == 2
    assert verdict.reason == "1 tensor not compared (only the ranks have it)"


@pytest.mark.parametrize(("next_sums", "outcome"), [(True, "within rounding"), (False, "differs")])
def test_parts_of_a_sum_are_a_fault_where_the_next_module_does_not_add_them_up(next_sums, outcome):
    first, second = [3.0, 1.0], [5.0, 2.0]
    twin = recording(0, 1, [row("module", "a.product", first), row("module", "a", second)])
    ranks = [
        recording(rank, 2, [
            row("module", "a.product", [share * value for value in first]),
            row("module", "a", second if next_sums else [share * value for value in second]),
        ])
        for rank, share in enumerate((0.25, 0.75))
    ]  # fmt: skip
    verdict = judge_parallel(twin, ranks, [], None)
    assert verdict.outcome == outcome
    if not next_sums:
        assert verdict.first_place.module == "a.product"
        assert "an all-reduce is missing" in parallel_text(verdict, 3)


def test_ranks_of_several_runs_and_a_twin_of_several_ranks_are_no_all_clear():
    rows = [row("module", "a", [3.0, 1.0])]
    ranks = [recording(rank, 2, rows) for rank in range(2)]

    def problems(twin, ranks):
        verdict = judge_parallel(twin, ranks, [], None)
        assert verdict.outcome == ("undecided" if verdict.problems else "within rounding")
        return " ".join(verdict.problems)

    twin = recording(0, 1, rows)
    assert problems(twin, ranks) == ""
    assert "of several runs" in problems(twin, [*ranks, recording(2, 4, rows)])
    assert "of several runs" in problems(twin, [*ranks, ranks[1]])
    assert "the twin is one of 2 ranks" in problems(ranks[0], ranks)
    assert judge_parallel(recording(0, 1, []), [recording(0, 1, [])], [], None).outcome == "not comparable"


BIG, TINY = [3.0, 1.0], [3e-5, 1e-5]


def scaled(values, share):
    return [value * (1 + share) for value in values]


def against_twin(values_of_twin, values, floor=None):
    """The verdict of modules a, b, ..., each a replica on both ranks."""

    def rows(of_modules, ck="0"):
        return [row("module", name, of, ck) for name, of in zip("abc", of_modules, strict=False)]

    floors = [recording(0, 1, rows(floor, "1"))] if floor else []
    ranks = [recording(rank, 2, rows(values)) for rank in range(2)]
    return judge_parallel(recording(0, 1, rows(values_of_twin)), ranks, floors, None)


@pytest.mark.parametrize(
    ("share", "outcome"), [(1.3e-6, "within rounding"), (1.4e-6, "differs"), (-1.4e-6, "differs")]
)
def test_without_a_floor_rounding_is_16_half_ulps_times_the_root_of_the_depth(share, outcome):
    verdict = against_twin([BIG], [scaled(BIG, share)])
    assert verdict.outcome == outcome and not verdict.measured


@pytest.mark.parametrize(("share", "outcome"), [(9e-5, "within rounding"), (11e-5, "differs")])
def test_with_a_floor_it_is_ten_times_what_that_moves_the_tensor(share, outcome):
    verdict = against_twin([BIG], [scaled(BIG, share)], [scaled(BIG, 1e-5)])
    assert verdict.outcome == outcome and verdict.measured


def test_a_floor_of_another_batch_would_excuse_any_fault_and_is_refused():
    twin, rank, floor = ([row("input", "", BIG, ck), row("module", "a", BIG, ck)] for ck in "001")
    with pytest.raises(UsageError, match="other inputs than A"):
        judge_parallel(recording(0, 1, twin), [recording(0, 1, rank)], [recording(0, 1, floor)], None)


@pytest.mark.parametrize(("share", "outcome"), [(1.7e-4, "within rounding"), (2.1e-4, "differs")])
def test_a_tensor_that_cancelled_is_held_against_a_thousandth_of_its_peers(share, outcome):
    verdict = against_twin([BIG, BIG, TINY], [BIG, BIG, scaled(TINY, share)])
    assert verdict.outcome == outcome
    if outcome == "differs":
        assert verdict.first_place.module == "c"


@pytest.mark.parametrize(("share", "words"), [(0.009, ""), (0.011, "1.011 times the twin's")])
def test_a_scale_is_named_from_a_hundredth_on(share, words):
    assert against_twin([BIG], [scaled(BIG, share)]).first_place.explanation == words
