"""Which rows of different ranks are one call, for each process group.

Equal lists of calls join by their place in them, whatever the clocks say: a clock is a result of pairing,
never a condition for it. Lists that differ are aligned on a clock that all pairs of equal calls vote for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.recordings.pairing.align import MEET_NS, align_ranks
from lab.recordings.pairing.clocks import clock_line
from lab.recordings.pairing.routes import match_route
from lab.recordings.pairing.rows import UNNAMED, CallRows, Match, numbered, running_count
from lab.stats.columns import distinct

# Ends of one call agree within some tens of us, those of neighbouring calls lie ms apart.
STEADY_NS = 100_000
# Windows cut at different calls: equal lists may be shifted by so many.
MOST_SHIFTED = 8
# Right pairs spread by 5 to 25 us in recordings, wrong ones by ms.
BETTER_SHIFT = 5
FEWEST_CALLS = 3


def match_calls(rows: CallRows) -> list[Match]:
    """One match per group."""
    return [_match_group(rows, group) for group in range(rows.num_groups)]


def _match_group(rows: CallRows, group: int) -> Match:
    members = rows.of_group(group)
    route = rows.routes[group]
    if route and route != UNNAMED:
        return Match(match_route(rows, members, route), "order")
    if route:
        return Match(_unnamed(rows, members), "order")
    if (rows.seq[members] >= 0).all():
        return Match(_by_seq(rows, members), "seq")
    call, confidence = _by_order(rows, members)
    return Match(call, confidence if rows.groups[group][2] == "" else "stream")


def _unnamed(rows: CallRows, members: np.ndarray) -> np.ndarray:
    """Calls (m,) of sends and receives without partners: told where two ranks end all of them together."""
    nothing = np.full(len(members), -1, dtype=np.int64)
    if len(distinct(rows.rank_index[members])) != 2 or rows.p2p.sum() != len(members):
        return nothing
    rows.blocking[members] = True
    call, _ = _by_order(rows, members)
    if (call >= 0).any() and _all_met(rows, members, call, rows.start[members]):
        return call
    rows.blocking[members] = False
    return nothing


def _by_order(rows: CallRows, members: np.ndarray) -> tuple[np.ndarray, str]:
    """Calls (m,) by index where all lists are equal and their ends steady, otherwise by alignment."""
    if not len(members):
        return np.empty(0, dtype=np.int64), "order"
    lists = _per_rank(rows, members)
    signatures = [rows.signature[members[index]] for index in lists]
    if all(np.array_equal(signatures[0], signature) for signature in signatures[1:]):
        call = running_count(rows.rank_index[members])
        if _all_met(rows, members, call, rows.start[members]):
            return call, "order"
        shifts = _shifts(rows, members, lists)
        if shifts is not None:
            shifted = call + shifts[np.repeat(np.arange(len(lists)), [len(index) for index in lists])]
            start = rows.start[members] - _offsets(rows, members, lists, shifts)
            if _all_met(rows, members, shifted, start):
                return shifted - shifted.min(), "order" if not shifts.any() else "lcs"
    return align_ranks(rows, members, lists), "lcs"


def _shifts(rows: CallRows, members: np.ndarray, lists: Sequence[np.ndarray]) -> np.ndarray | None:
    """Number of calls by which each rank's list is shifted against the first one's; None if unsteady.

    Place 0 wins unless another is clearly steadier.
    """
    ends = rows.start[members] + rows.dur[members]
    reference = ends[lists[0]]
    if len(reference) < FEWEST_CALLS:
        return None
    shifts = []
    for index in lists:
        spreads = {0: _spread(ends[index], reference, 0)}
        if spreads[0] > STEADY_NS / BETTER_SHIFT:
            limit = min(MOST_SHIFTED, len(reference) - FEWEST_CALLS)
            spreads |= {k: _spread(ends[index], reference, k) for k in range(-limit, limit + 1) if k}
        best = min(spreads, key=lambda k: (spreads[k], abs(k)))
        shift = best if spreads[best] * BETTER_SHIFT < spreads[0] else 0
        if spreads[shift] > STEADY_NS:
            return None
        shifts.append(shift)
    return np.array(shifts, dtype=np.int64)


def _pairs_of(ends: np.ndarray, reference: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """This rank's ends and those of the first rank's calls that stand `shift` places later."""
    count = len(reference) - abs(shift)
    a, b = max(0, -shift), max(0, shift)
    return ends[a : a + count], reference[b : b + count]


def _spread(ends: np.ndarray, reference: np.ndarray, shift: int) -> float:
    """How far 9 of 10 differences of the ends lie from their median at most, drift taken out."""
    a, b = _pairs_of(ends, reference, shift)
    offset, slope, middle = clock_line(a, a - b)
    # 9 of 10, not all: a rank that leaves a few calls late keeps its pairs.
    return float(np.percentile(np.abs(a - b - offset - slope * (a - middle)), 90))


def _offsets(
    rows: CallRows, members: np.ndarray, lists: Sequence[np.ndarray], shifts: np.ndarray
) -> np.ndarray:
    """The clock of each row's rank against the first rank's (m,) in ns, from the ends."""
    ends = rows.start[members] + rows.dur[members]
    offsets = np.zeros(len(members), dtype=np.int64)
    for index, shift in zip(lists, shifts.tolist(), strict=True):
        a, b = _pairs_of(ends[index], ends[lists[0]], shift)
        offset, slope, middle = clock_line(a, a - b)
        offsets[index] = np.rint(offset + slope * (ends[index] - middle)).astype(np.int64)
    return offsets


def _all_met(rows: CallRows, members: np.ndarray, call: np.ndarray, start: np.ndarray) -> bool:
    """Whether in every blocking call the last rank started before the first one ended.

    If most calls need the tolerance of the clocks, they are different calls. Rows of 0 ns say nothing, for
    their length was lost.
    """
    wanted = (call >= 0) & rows.blocking[members] & (rows.dur[members] > 0)
    if not wanted.any():
        return True
    call_index = call[wanted] - call[wanted].min()
    starts, ends = start[wanted], start[wanted] + rows.dur[members[wanted]]
    last_start = np.full(call_index.max() + 1, np.iinfo(np.int64).min)
    np.maximum.at(last_start, call_index, starts)
    late_ns = last_start[call_index] - ends
    return bool((late_ns <= MEET_NS).all() and (late_ns <= 0).mean() > 0.5)


def _by_seq(rows: CallRows, members: np.ndarray) -> np.ndarray:
    """Calls by sequence number; those that share one (a coalesced batch) by their order in it."""
    key = rows.seq[members]
    nth = running_count(numbered(zip(rows.rank_index[members].tolist(), key.tolist(), strict=True))[0])
    _, call = np.unique(np.stack([key, nth]), axis=1, return_inverse=True)
    return np.asarray(call.ravel())


def _per_rank(rows: CallRows, members: np.ndarray) -> list[np.ndarray]:
    """Indices of the rows in `members` of each rank that has rows."""
    edges = np.flatnonzero(np.diff(rows.rank_index[members])) + 1
    return np.split(np.arange(len(members)), edges)
