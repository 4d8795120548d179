"""Which rows of different ranks are one call, for each process group, sender and receiver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lab.recordings.pairing.align import MEET_NS, align_ranks
from lab.recordings.pairing.rows import UNNAMED, CallRows, numbered, running_count
from lab.stats import robust
from lab.stats.columns import distinct


def match_calls(rows: CallRows) -> tuple[np.ndarray, list[str]]:
    """The number of the call that each row (n,) belongs to, -1 for none; how each call was told."""
    call = np.full(len(rows.rank), -1, dtype=np.int64)
    confidence: list[str] = []
    for group in range(len(rows.groups)):
        members = rows.of_group(group)
        number, certainty = _match_group(rows, group, members)
        used, dense = np.unique(number[number >= 0], return_inverse=True)
        call[members[number >= 0]] = dense.ravel() + len(confidence)
        confidence += [certainty] * len(used)
    return call, confidence


def _match_group(rows: CallRows, group: int, members: np.ndarray) -> tuple[np.ndarray, str]:
    route = rows.routes[group]
    if route and route != UNNAMED:
        return match_route(rows, members, route), "order"
    if route:
        return _unnamed(rows, members), "order"
    if (rows.seq[members] >= 0).all():
        return _by_seq(rows, members), "seq"
    call, confidence = _by_order(rows, members)
    return call, confidence if rows.groups[group][2] == "" else "stream"


def _unnamed(rows: CallRows, members: np.ndarray) -> np.ndarray:
    """Calls (m,) of sends and receives without partners: told where two ranks end all of them together."""
    nothing = np.full(len(members), -1, dtype=np.int64)
    if len(distinct(rows.rank_index[members])) != 2 or rows.p2p.sum() != len(members):
        return nothing
    # Without names only the ends tell: as if these calls blocked, which the check below must bear out.
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
    if any(not np.array_equal(signatures[0], signature) for signature in signatures[1:]):
        return align_ranks(rows, members, lists), "lcs"
    in_order = running_count(rows.rank_index[members])
    if _all_met(rows, members, in_order, rows.start[members]):
        return in_order, "order"
    # Either the clocks differ, and the calls are the same, or the windows were cut at different calls.
    aligned = align_ranks(rows, members, lists)
    return aligned, "order" if np.array_equal(aligned, in_order) else "lcs"


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


# Ends of a send and of the receive that waited for it agree within this, as do clocks of one host.
TOGETHER_NS = 50_000
# A call that takes so much longer than the shortest on its route has waited for its partner.
WAITED_RATIO, WAITED_NS = 1.5, 20_000
# Windows that do not end at the same call are shifted by so many at most; so many pairs must fit.
MOST_SHIFTED, FITTING_SHARE, FEWEST_WAITED = 8, 0.9, 3


class _Fit(NamedTuple):
    """How well pairs (m,) agree with what sends and receives can do, and which of them waited."""

    share: float
    waited: np.ndarray


def match_route(rows: CallRows, members: np.ndarray, route: Sequence[int]) -> np.ndarray:
    """Calls (m,) by number, -1 where a partner is missing; also marks the rows whose ends tell of clocks."""
    source, target = (np.flatnonzero(rows.rank[members] == rank) for rank in route)
    call = np.full(len(members), -1, dtype=np.int64)
    if not len(source) or not len(target):
        if not {*route} <= {*rows.ranks}:  # the partner was not recorded: each is a call of one rank
            call[:] = np.arange(len(members))
        return call
    fits = {}
    limit = min(MOST_SHIFTED, min(len(source), len(target)) - 1)
    # From the last call backwards: windows begin in running work, but end with the profiler's last step.
    for shift in sorted(range(-limit, limit + 1), key=abs):
        sends, receives = _shifted(source, target, shift)
        fits[shift] = _fit(rows, members[sends], members[receives])
        if fits[shift].share == 1 and not shift:
            break
    best = max(fits, key=lambda shift: (fits[shift].share, -abs(shift)))
    if fits[best].share < FITTING_SHARE:
        return call
    sends, receives = _shifted(source, target, best)
    call[sends] = call[receives] = np.arange(len(sends))
    for side in (sends, receives):
        rows.blocking[members[side[fits[best].waited]]] = True
    rows.buffered[members[sends]] = _buffered(rows, members[sends], members[receives])
    return call


def _buffered(rows: CallRows, sends: np.ndarray, receives: np.ndarray) -> np.ndarray:
    """Which sends (m,) wait for no receive: if one ended before its receive began, all as short as it."""
    ends = rows.start[sends] + rows.dur[sends]
    if not (ends < rows.start[receives]).any():
        return np.zeros(len(sends), dtype=bool)
    is_short: np.ndarray = rows.dur[sends] <= rows.dur[sends].min() * WAITED_RATIO + WAITED_NS
    return is_short


def _shifted(source: np.ndarray, target: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Sends and receives (k,) that pair; the last receive belongs to the send `shift` before the last."""
    sends = source[: len(source) - shift] if shift > 0 else source
    receives = target[: len(target) + shift] if shift < 0 else target
    count = min(len(sends), len(receives))
    return sends[len(sends) - count :], receives[len(receives) - count :]


def _fit(rows: CallRows, sends: np.ndarray, receives: np.ndarray) -> _Fit:
    send_start, receive_start = rows.start[sends], rows.start[receives]
    send_end, receive_end = send_start + rows.dur[sends], receive_start + rows.dur[receives]
    single = ~(_shares_kernel(rows, sends) | _shares_kernel(rows, receives))
    both_ns = np.stack([rows.dur[sends], rows.dur[receives]])
    limit_ns = both_ns.min(axis=1, keepdims=True) * WAITED_RATIO + WAITED_NS
    waited = (both_ns > limit_ns).any(axis=0) & single
    apart = receive_end - send_end
    offset_ns = robust.median(apart[waited]) if waited.sum() >= FEWEST_WAITED else 0.0
    offset_ns = 0.0 if abs(offset_ns) <= TOGETHER_NS else offset_ns
    together = np.abs(apart - offset_ns) <= TOGETHER_NS
    fits = np.where(waited, together, receive_end - offset_ns >= send_start - TOGETHER_NS)
    return _Fit(float(fits.mean()), waited & together)


def _shares_kernel(rows: CallRows, index: np.ndarray) -> np.ndarray:
    """Whether the kernel of each row (m,) holds several sends or receives, and so ends with the last."""
    count = np.bincount(rows.source, minlength=1)
    shares: np.ndarray = count[rows.source[index]] > 1
    return shares
