"""What collectives cost the kernels beside them, and what is a rank's own slowness instead."""

from __future__ import annotations

import numpy as np
import pytest

from lab.recordings.ranks.contention import contention_of
from lab.recordings.ranks.work import COMM, COMP, RankWork

US = 1_000
NOTHING = np.empty((0, 2), dtype=np.int64)
ALONE, BESIDE = 6, 6


def works(factors: list[float], costs: list[float]) -> list[RankWork]:
    """One rank per factor: six kinds of GEMM alone, three times each, then six more that only the last rank
    runs alone; the others run them beside a collective, which makes them so many times as long."""
    return [_rank(i, factor, costs[i], i < len(factors) - 1) for i, factor in enumerate(factors)]


def _rank(rank: int, factor: float, cost: float, beside: bool) -> RankWork:
    kinds = [*range(ALONE), *range(ALONE, ALONE + BESIDE)] * 3
    dur = np.array([(100 + 10 * kind) * factor * (cost if kind >= ALONE else 1) * US for kind in kinds])
    dur = dur.astype(np.int64)
    start = np.cumsum(dur) - dur + np.arange(len(dur)) * US
    key = np.array(kinds)
    kind = np.full(len(key), COMP, dtype=np.int8)
    if beside:
        under = np.flatnonzero(key >= ALONE)
        start, dur = np.append(start, start[under]), np.append(dur, dur[under])
        key, kind = np.append(key, np.full(len(under), 99)), np.append(kind, [COMM] * len(under))
    names = [("aten::mm", "", "", f"nvjet_{number}", "1,1,1") for number in range(100)]
    return RankWork(
        rank=rank,
        device="gpu",
        host="",
        start=start,
        end=start + dur,
        kind=kind.astype(np.int8),
        stream=np.where(kind == COMM, 28, 7),
        call_begin=start,
        call_end=start,
        key=key,
        keys=tuple(names),
        steps=np.empty((0, 3), dtype=np.int64),
        blocking_calls=NOTHING,
        calls=NOTHING,
        host_ops=NOTHING,
        collectives=None,  # type: ignore[arg-type]
    )


def cost_us(factors: list[float], costs: list[float]) -> list[float]:
    return [one.cost_ns.sum() / US for one in contention_of(works(factors, costs))]


@pytest.mark.parametrize("factors", [[2.5, 1.0], [2.5, 2.5, 1.0, 1.0], [1.0, 2.5], [1.0, 1.0]])
def test_a_slow_ranks_own_slowness_is_no_contention(factors):
    assert cost_us(factors, [1.0] * len(factors)) == pytest.approx([0.0] * len(factors), abs=1.0)


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_what_collectives_cost_a_slow_rank_is_found_within_a_tenth(factor):
    found = cost_us([factor, 1.0], [1.4, 1.0])
    planted_us = 3 * sum((100 + 10 * kind) * factor * 0.4 for kind in range(ALONE, ALONE + BESIDE))
    assert found[0] == pytest.approx(planted_us, rel=0.1) and found[1] == 0.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("factors", [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0, 1.0]])
def test_kernels_without_durations_make_no_other_rank_contended(factors):
    assert cost_us(factors, [1.4] * len(factors)) == [0.0] * len(factors)
