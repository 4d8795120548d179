"""The columns that the rules look at, and how calls and GPU rows join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lab.recordings.capture import UNCLAIMED, Capture
from lab.recordings.integrity.calls import BEGIN_CAPTURE, END_CAPTURE, kinds_of
from lab.recordings.tables import Table
from lab.stats.columns import distinct, distinct_rows

UNIFIED = 11  # copy_kind from here on: migrations of unified memory (`capture.COPY_KINDS`)
FOREVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Evidence:
    """The columns that rules need, and joins of them, each computed once.

    ops and api: process, start_ns, end_ns, corr, name_id; ops also device, context, stream, kind, graph,
    graph_node, copy_kind; api also pid and tid. optional_copies: the recorder traces copies only if asked
    (rule T). unclaimed is the process of rows that no process here launched; -1: there are none.
    """

    ops: Table
    api: Table
    strings: Sequence[str]
    num_processes: int
    optional_copies: bool
    unclaimed: int = -1

    @cached_property
    def call_kinds(self) -> np.ndarray:
        return kinds_of(self.strings, self.api.name_id)

    @cached_property
    def has_row(self) -> np.ndarray:
        """Of each call (n,): whether a row on the GPU carries its correlation, in its process."""
        return joined(self.api, self.ops)

    @cached_property
    def has_call(self) -> np.ndarray:
        """Of each row on the GPU (n,): whether the call with its correlation is here."""
        return joined(self.ops, self.api)

    @cached_property
    def call_of(self) -> np.ndarray:
        """Index (n,) of the call of each row on the GPU, the first with its correlation; -1: unknown."""
        found = np.full(len(self.ops), -1, dtype=np.int64)
        for process in range(self.num_processes):
            api = np.flatnonzero((self.api.process == process) & (self.api.corr > 0))
            ops = np.flatnonzero((self.ops.process == process) & (self.ops.corr > 0))
            if not len(api) or not len(ops):
                continue
            api = api[np.lexsort((self.api.start_ns[api], self.api.corr[api]))]
            at = np.minimum(np.searchsorted(self.api.corr[api], self.ops.corr[ops]), len(api) - 1)
            known = self.api.corr[api[at]] == self.ops.corr[ops]
            found[ops[known]] = api[at[known]]
        return found

    @cached_property
    def uncalled(self) -> np.ndarray:
        """Of each row on the GPU (n,): what the GPU did by itself (page migrations); no call owes it."""
        return self.ops.copy_kind >= UNIFIED

    @cached_property
    def windows(self) -> np.ndarray:
        """Stream captures (m, 4): process, thread (an index of `threads`), first and last ns."""
        return _capture_windows(self)

    @cached_property
    def threads(self) -> np.ndarray:
        """The thread (n,) of each call, as a dense index over process, pid and tid."""
        keys = np.stack([self.api.process, self.api.pid, self.api.tid], axis=1).astype(np.int64)
        if not len(keys) or (keys == keys[0]).all():
            return np.zeros(len(keys), dtype=np.int64)
        return distinct_rows(keys)[1]

    @cached_property
    def window_of(self) -> np.ndarray:
        """Index (n,) of the capture window of its own thread that each call was made in, or -1."""
        found = np.full(len(self.api), -1, dtype=np.int64)
        for index, (_, thread, first, last) in enumerate(self.windows.tolist()):
            found[(self.threads == thread) & (self.api.start_ns >= first) & (self.api.start_ns <= last)] = (
                index
            )
        return found


# Of these tools every domain is a flag of its own; CUPTI's activities come together.
_BY_DOMAIN = ("rocpd", "rpd", "rocprofv3")


def of_capture(capture: Capture) -> Evidence:
    return Evidence(
        capture.ops,
        capture.api,
        capture.strings,
        max(len(capture.processes), 1),
        capture.collector in _BY_DOMAIN,
        capture.processes.index(UNCLAIMED) if UNCLAIMED in capture.processes else -1,
    )


def joined(one: Table, other: Table) -> np.ndarray:
    """Rows (n,) of `one` that share process and correlation with a row of `other` (0: none recorded)."""
    here, there = one.corr, other.corr
    if len(here) == 0 or len(there) == 0:
        return np.zeros(len(here), dtype=bool)
    known = here > 0
    if (one.process == one.process[0]).all() and (other.process == one.process[0]).all():
        # np.isin sorts both together; calls and rows come nearly in order.
        among = np.sort(there, kind="stable")
        shared: np.ndarray = among[np.minimum(np.searchsorted(among, here), len(among) - 1)] == here
        shared &= known
        return shared
    used = distinct(there)
    at = np.minimum(np.searchsorted(used, here), len(used) - 1)
    key = one.process.astype(np.int64) * len(used) + at
    keys = other.process.astype(np.int64) * len(used) + np.searchsorted(used, there)
    both: np.ndarray = known & (used[at] == here) & np.isin(key, keys)
    return both


def _capture_windows(of: Evidence) -> np.ndarray:
    """Begin to end on one thread; a window that the recording cuts off runs to that edge."""
    begin, end = of.call_kinds == BEGIN_CAPTURE, of.call_kinds == END_CAPTURE
    if not (begin | end).any():
        return np.empty((0, 4), dtype=np.int64)
    rows = np.flatnonzero(begin | end)
    rows = rows[np.lexsort((of.api.start_ns[rows], of.threads[rows]))]
    found: list[tuple[int, int, int, int]] = []
    first: dict[int, int] = {}
    seen: set[int] = set()
    process: dict[int, int] = {}
    for row in rows.tolist():
        thread, when = int(of.threads[row]), int(of.api.start_ns[row])
        process[thread] = int(of.api.process[row])
        if begin[row]:
            first.setdefault(thread, when)
        elif thread in first or thread not in seen:
            found.append((process[thread], thread, first.pop(thread, -FOREVER), when))
        seen.add(thread)
    found += [(process[thread], thread, when, FOREVER) for thread, when in first.items()]
    return np.array(found, dtype=np.int64).reshape(-1, 4)
