"""Sends from one rank to another paired with their receives, in order, from the end that both recorded.

Recordings begin in running work, so one rank may hold calls whose partners the other has not. A receive never
ends before its send has begun; one that was waited for ends with it. A send may end long before its receive
begins: NCCL buffers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lab.recordings.pairing.rows import CallRows
from lab.stats import robust

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
