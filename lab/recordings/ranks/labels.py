"""One label for each instant of a rank: what its GPU did, or what it lacked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.recordings.ranks.common import UNKNOWN, Call
from lab.recordings.ranks.work import COMM, COMP, COPY, RankWork
from lab.stats.columns import distinct

COMPUTE, TRANSFER, WAIT, UNPAIRED, COPYING, LAUNCH_LATE, LAUNCH_GAP, TAIL, UNEXPLAINED = range(9)
LABELS = (
    *("compute", "transfer", "wait", "unpaired", "copy"),
    *("launch_late", "launch_gap", "tail", "unexplained"),
)
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Segments:
    """Consecutive spans of one rank inside its windows, on its own clock.

    window is the row of the rank's windows; label one of the constants above; awaited the index of the rank
    that is waited for (UNKNOWN otherwise); next_row the operation that ends an idle span (UNKNOWN otherwise).
    """

    begin: np.ndarray
    end: np.ndarray
    window: np.ndarray
    label: np.ndarray
    awaited: np.ndarray
    next_row: np.ndarray

    @property
    def length(self) -> np.ndarray:
        length: np.ndarray = self.end - self.begin
        return length


def segments_of(work: RankWork, call: Call, windows: np.ndarray) -> Segments:
    """The labels of one rank; the lengths of a window's segments sum to the window exactly."""
    waits = _oldest_waits(work, call)
    launched = work.call_end[work.call_end >= 0]
    edges = distinct(
        np.concatenate(
            [windows[:, 1:].ravel(), work.start, work.end, call.all_in, waits[0], waits[1], launched]
        )
    )
    begin, end = edges[:-1], edges[1:]
    window = np.searchsorted(windows[:, 1], begin, side="right") - 1
    inside = (window >= 0) & (begin < windows[np.maximum(window, 0), 2])
    begin, end, window = begin[inside], end[inside], window[inside]

    def runs(start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        started = np.searchsorted(np.sort(start), begin, side="right")
        over = np.searchsorted(np.sort(stop), begin, side="right")
        active: np.ndarray = started > over
        return active

    computes, talks, copies = (
        runs(work.start[work.kind == k], work.end[work.kind == k]) for k in (COMP, COMM, COPY)
    )
    is_paired = ~call.loose
    moves = runs(call.all_in[is_paired], work.end[call.row[is_paired]])
    loose = runs(work.start[call.row[call.loose]], work.end[call.row[call.loose]])
    wait_index = np.searchsorted(waits[0], begin, side="right") - 1
    in_wait = (
        (wait_index >= 0) & (begin < waits[1][np.maximum(wait_index, 0)])
        if len(wait_index) and len(waits[0])
        else np.zeros(len(begin), bool)
    )
    awaited = np.where(in_wait, waits[2][np.maximum(wait_index, 0)] if len(waits[2]) else UNKNOWN, UNKNOWN)
    # A collective without a row here moves data, as far as known.
    without_row = talks & ~moves & ~in_wait & ~loose
    order = np.argsort(work.start, kind="stable")
    coming = np.searchsorted(work.start[order], begin, side="right")
    is_followed = coming < len(order)
    next_row = np.where(
        is_followed, order[np.minimum(coming, len(order) - 1)] if len(order) else UNKNOWN, UNKNOWN
    )
    next_start = np.where(is_followed, work.start[next_row] if len(order) else _FAR, _FAR)
    returned = np.where(is_followed, work.call_end[next_row] if len(order) else UNKNOWN, UNKNOWN)
    idle = ~(computes | talks | copies)
    # Each line overrules those above it: an instant has one label, so the parts sum to the step.
    label = np.full(len(begin), UNEXPLAINED)
    label[idle & (returned >= 0)] = LAUNCH_GAP
    label[idle & (returned > begin)] = LAUNCH_LATE
    label[idle & (next_start >= windows[window, 2])] = TAIL
    label[copies] = COPYING
    label[talks & loose] = UNPAIRED
    label[talks & in_wait] = WAIT
    label[moves & talks | without_row] = TRANSFER
    label[computes] = COMPUTE
    return Segments(
        begin,
        end,
        window,
        label,
        np.where(label == WAIT, awaited, UNKNOWN),
        np.where(idle & (label != TAIL), next_row, UNKNOWN),
    )


def _oldest_waits(work: RankWork, call: Call) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Disjoint spans of waiting and who is waited for: of several calls the oldest counts."""
    begin, end = work.start[call.row], call.all_in
    order = np.lexsort((end, begin))
    begin, end, last_index = begin[order], end[order], call.last_index[order]
    reach = np.maximum.accumulate(end) if len(end) else end
    begin = np.maximum(begin, np.concatenate([[np.iinfo(np.int64).min], reach[:-1]])) if len(end) else begin
    is_wait = begin < end
    return begin[is_wait], end[is_wait], last_index[is_wait]
