"""Which rows of different ranks are one call, for each process group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.recordings.pairing.align import MEET_NS, align_ranks
from lab.recordings.pairing.clocks import clock_offsets
from lab.recordings.pairing.rows import NO_MATCH, CallRows, Match, numbered, running_count


def match_calls(rows: CallRows) -> list[Match]:
    """One match per group. Clocks are corrected only if most calls of a rank meet no other as recorded."""
    by_seq = [_match_seq(rows, group) for group in range(rows.num_groups)]
    _, offsets = clock_offsets(rows, [match or NO_MATCH for match in by_seq])
    start = rows.start - offsets[rows.rank_index]
    as_recorded = [match or _match_in_time(rows, g, start) for g, match in enumerate(by_seq)]
    if _shares_met(rows, as_recorded).min(initial=1.0) > 0.5:
        return as_recorded
    in_order = [match or _match_order(rows, g, rows.start, in_time=False) for g, match in enumerate(by_seq)]
    _, offsets = clock_offsets(rows, in_order)
    start = rows.start - offsets[rows.rank_index]
    corrected = [match or _match_in_time(rows, g, start) for g, match in enumerate(by_seq)]
    return max(as_recorded, corrected, key=lambda matches: float(_shares_met(rows, matches).sum()))


def _match_seq(rows: CallRows, group: int) -> Match | None:
    members = rows.of_group(group)
    return Match(_by_seq(rows, members), "seq") if (rows.seq[members] >= 0).all() else None


def _match_in_time(rows: CallRows, group: int, start: np.ndarray) -> Match:
    """Calls by order where that is possible in time, otherwise by alignment."""
    match = _match_order(rows, group, start, in_time=False)
    aligned = match.confidence != "lcs" and _all_met(rows, rows.of_group(group), match.call, start)
    return match if aligned else _match_order(rows, group, start, in_time=True)


def _match_order(rows: CallRows, group: int, start: np.ndarray, *, in_time: bool) -> Match:
    """Calls of one group by their order; with in_time the rows of one call must have met."""
    members = rows.of_group(group)
    has_metadata = rows.groups[group][2] == ""
    lists = _per_rank(rows, members)
    signatures = [rows.signature[members[index]] for index in lists]
    same = all(np.array_equal(signatures[0], other) for other in signatures[1:])
    if same and not in_time:
        call, confidence = running_count(rows.rank_index[members]), "order"
    else:
        call, confidence = align_ranks(rows, members, lists, start, in_time=in_time), "lcs"
    return Match(_no_p2p(rows, members, call), confidence if has_metadata else "stream")


def _shares_met(rows: CallRows, matches: Sequence[Match]) -> np.ndarray:
    """The share of paired blocking calls, for each rank that could pair any."""
    wanted = np.zeros(len(rows.ranks), dtype=np.int64)
    met = np.zeros(len(rows.ranks), dtype=np.int64)
    for group, match in enumerate(matches):
        members = rows.of_group(group)
        chosen = rows.blocking[members] & (match.call >= 0)
        ranks, call = rows.rank_index[members[chosen]], match.call[chosen]
        if len(np.unique(ranks)) > 1:
            np.add.at(wanted, ranks, 1)
            np.add.at(met, ranks, np.bincount(call)[call] > 1)
    found: np.ndarray = met[wanted > 0] / wanted[wanted > 0]
    return found


def _by_seq(rows: CallRows, members: np.ndarray) -> np.ndarray:
    """Calls by sequence number; those that share one (a coalesced batch) by their order in it."""
    p2p = rows.p2p[members].astype(np.int64)
    key = rows.seq[members] * 2 + p2p
    nth = running_count(numbered(zip(rows.rank_index[members].tolist(), key.tolist(), strict=True))[0])
    _, call = np.unique(np.stack([key, nth]), axis=1, return_inverse=True)
    return _no_p2p(rows, members, call.ravel())


def _no_p2p(rows: CallRows, members: np.ndarray, call: np.ndarray) -> np.ndarray:
    """A send and its receive are a pair only in groups of two ranks."""
    if len(np.unique(rows.rank_index[members])) <= 2:
        return call
    return np.where(rows.p2p[members], -1, call)


def _per_rank(rows: CallRows, members: np.ndarray) -> list[np.ndarray]:
    """For each rank that has rows: the indices of its rows in `members`."""
    edges = np.flatnonzero(np.diff(rows.rank_index[members])) + 1
    return np.split(np.arange(len(members)), edges)


def _all_met(rows: CallRows, members: np.ndarray, call: np.ndarray, start: np.ndarray) -> bool:
    """Whether in every blocking call the last rank started before the first one ended.

    If most calls need the tolerance of the clocks, they are different calls.
    """
    wanted = (call >= 0) & rows.blocking[members]
    if not wanted.any():
        return True
    index, which = members[wanted], call[wanted]
    last = np.full(which.max() + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, which, start[index])
    late_ns = last[which] - (start + rows.dur)[index]
    return bool((late_ns <= MEET_NS).all() and (late_ns <= 0).mean() > 0.5)
