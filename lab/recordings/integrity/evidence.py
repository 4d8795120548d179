"""The columns that the rules look at, and how calls and GPU rows join."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lab.recordings.capture import UNCLAIMED, Capture
from lab.recordings.tables import Table
from lab.stats.columns import distinct, distinct_rows

# Kinds of calls. FILL: a memset, which makes a row only if it has bytes to set and no library hides it. WAIT:
# for everything on the device.
OTHER, LAUNCH, GRAPH_LAUNCH, COPY, FILL, BEGIN_CAPTURE, END_CAPTURE, WAIT = range(8)

# nsys and CUPTI append the version of the call's signature.
_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds|_spt)+\Z")
_KINDS = (
    (GRAPH_LAUNCH, re.compile(r"(cuda|cu|hip)GraphLaunch")),
    (BEGIN_CAPTURE, re.compile(r"(cuda|cu|hip)StreamBeginCapture\w*")),
    (END_CAPTURE, re.compile(r"(cuda|cu|hip)StreamEndCapture")),
    # Not the callbacks of the host: cudaLaunchHostFunc owes nothing.
    (
        LAUNCH,
        re.compile(
            r"(cuda|cu|hip(Ext|Drv|Hcc)?)(Module)?Launch(Cooperative|Multi)?Kernel\w*"
            r"|hipLaunchByPtr|cudaLaunch|cuLaunch(Grid(Async)?)?"
        ),
    ),
    (COPY, re.compile(r"(cuda|cu|hip)Memcpy(?!GetAttribute)\w*")),
    (FILL, re.compile(r"(cuda|cu|hip)Memset\w*")),
    (WAIT, re.compile(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize")),
)


def kinds_of(strings: Sequence[str], name_ids: np.ndarray) -> np.ndarray:
    """The kind (n,) of each call, from the ids of their names; OTHER for -1."""
    used, position = np.unique(name_ids, return_inverse=True)
    kinds = np.array([kind_of(strings[index]) if index >= 0 else OTHER for index in used], dtype=np.int8)
    return kinds[position] if len(used) else np.empty(0, dtype=np.int8)


def kind_of(name: str) -> int:
    """The kind of one call."""
    bare = _VERSION.sub("", name)
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(bare)), OTHER)


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
        calls = np.full(len(self.ops), -1, dtype=np.int64)
        for process in range(self.num_processes):
            api = np.flatnonzero((self.api.process == process) & (self.api.corr > 0))
            ops = np.flatnonzero((self.ops.process == process) & (self.ops.corr > 0))
            if not len(api) or not len(ops):
                continue
            api = api[np.lexsort((self.api.start_ns[api], self.api.corr[api]))]
            position = np.minimum(np.searchsorted(self.api.corr[api], self.ops.corr[ops]), len(api) - 1)
            matches = self.api.corr[api[position]] == self.ops.corr[ops]
            calls[ops[matches]] = api[position[matches]]
        return calls

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
        windows = np.full(len(self.api), -1, dtype=np.int64)
        for index, (_, thread, begin_ns, end_ns) in enumerate(self.windows.tolist()):
            windows[
                (self.threads == thread) & (self.api.start_ns >= begin_ns) & (self.api.start_ns <= end_ns)
            ] = index
        return windows


# Of these tools every domain is a flag of its own; CUPTI's activities come together. XLA leaves out copies of
# AMD's GPUs, whose stream it does not know (xla/backends/profiler/gpu/rocm_collector.cc).
_BY_DOMAIN = ("rocpd", "rpd", "rocprofv3", "xplane amd")


def of_capture(capture: Capture) -> Evidence:
    return Evidence(
        capture.ops,
        capture.api,
        capture.strings,
        max(len(capture.processes), 1),
        not {capture.collector, f"{capture.collector} {capture.info.get('vendor')}"}.isdisjoint(_BY_DOMAIN),
        capture.processes.index(UNCLAIMED) if UNCLAIMED in capture.processes else -1,
    )


def joined(left: Table, right: Table) -> np.ndarray:
    """Rows (n,) of `one` that share process and correlation with a row of `other` (0: none recorded)."""
    left_corr, right_corr = left.corr, right.corr
    if len(left_corr) == 0 or len(right_corr) == 0:
        return np.zeros(len(left_corr), dtype=bool)
    recorded = left_corr > 0
    if (left.process == left.process[0]).all() and (right.process == left.process[0]).all():
        # np.isin sorts both together; calls and rows come nearly in order.
        among = np.sort(right_corr, kind="stable")
        shared: np.ndarray = among[np.minimum(np.searchsorted(among, left_corr), len(among) - 1)] == left_corr
        shared &= recorded
        return shared
    used = distinct(right_corr)
    position = np.minimum(np.searchsorted(used, left_corr), len(used) - 1)
    key = left.process.astype(np.int64) * len(used) + position
    keys = right.process.astype(np.int64) * len(used) + np.searchsorted(used, right_corr)
    shared_by_process: np.ndarray = recorded & (used[position] == left_corr) & np.isin(key, keys)
    return shared_by_process


def _capture_windows(of: Evidence) -> np.ndarray:
    """Begin to end on one thread; a window that the recording cuts off runs to that edge."""
    begin, end = of.call_kinds == BEGIN_CAPTURE, of.call_kinds == END_CAPTURE
    if not (begin | end).any():
        return np.empty((0, 4), dtype=np.int64)
    rows = np.flatnonzero(begin | end)
    rows = rows[np.lexsort((of.api.start_ns[rows], of.threads[rows]))]
    windows: list[tuple[int, int, int, int]] = []
    begins: dict[int, int] = {}
    closed_threads: set[int] = set()
    process: dict[int, int] = {}
    for row in rows.tolist():
        thread, when = int(of.threads[row]), int(of.api.start_ns[row])
        process[thread] = int(of.api.process[row])
        if begin[row]:
            begins.setdefault(thread, when)
        elif thread in begins or thread not in closed_threads:
            windows.append((process[thread], thread, begins.pop(thread, -FOREVER), when))
        closed_threads.add(thread)
    windows += [(process[thread], thread, when, FOREVER) for thread, when in begins.items()]
    return np.array(windows, dtype=np.int64).reshape(-1, 4)
