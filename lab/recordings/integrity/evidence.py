"""The columns that the rules look at, and how calls and GPU rows join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lab.recordings.calls import BEGIN_CAPTURE, END_CAPTURE, GRAPH_LAUNCH, call_kinds, launch_calls, pair_keys
from lab.recordings.capture import UNCLAIMED, Capture
from lab.recordings.owners import first_index
from lab.recordings.tables import Table
from lab.stats.columns import distinct, distinct_rows

UNIFIED = 11  # copy_kind from here on: migrations of unified memory (`capture.COPY_KINDS`)
FOREVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Evidence:
    """The columns that rules need, and joins of them, each computed once.

    ops and api: process, start_ns, end_ns, corr, name_id; ops also device, context, stream, kind, graph,
    graph_node, copy_kind; api also pid and tid. call_kinds: of each call; call_of: the row of `api` that
    launched each GPU row, or -1. optional_copies: the recorder traces copies only if asked
    (rule T). unclaimed is the process of rows that no process here launched; -1: there are none.
    """

    ops: Table
    api: Table
    call_kinds: np.ndarray
    call_of: np.ndarray
    strings: Sequence[str]
    num_processes: int
    optional_copies: bool
    unclaimed: int = -1

    @cached_property
    def has_row(self) -> np.ndarray:
        """Whether a GPU row of the same process carries the correlation of each call (n,)."""
        keys = pair_keys((self.api.process, self.api.corr), (self.ops.process, self.ops.corr))
        has_row: np.ndarray = first_index(*keys) >= 0
        return has_row

    @cached_property
    def has_call(self) -> np.ndarray:
        """Whether the call of each GPU row (n,) was recorded, by its correlation."""
        has_call: np.ndarray = self.call_of >= 0
        return has_call

    @cached_property
    def uncalled(self) -> np.ndarray:
        """Mark the GPU rows (n,) that no call owes: what the GPU did by itself (page migrations)."""
        return self.ops.copy_kind >= UNIFIED

    @cached_property
    def replayed(self) -> np.ndarray:
        """Mark the GPU rows (n,) that a graph made, by their node or by the call that launched it."""
        by_call = np.append(self.call_kinds == GRAPH_LAUNCH, False)[self.call_of]
        replayed: np.ndarray = by_call | (self.ops.graph_node > 0) | (self.ops.graph > 0)
        return replayed

    @cached_property
    def windows(self) -> np.ndarray:
        """Stream captures (m, 4): process, thread (an index of `threads`), first and last ns."""
        return _capture_windows(self)

    @cached_property
    def threads(self) -> np.ndarray:
        """The thread (n,) of each call, as a dense index over process, pid and tid."""
        # Thread ids repeat between processes, so a thread is known by all three.
        keys = np.stack([self.api.process, self.api.pid, self.api.tid], axis=1).astype(np.int64)
        if not len(keys) or (keys == keys[0]).all():
            return np.zeros(len(keys), dtype=np.int64)
        return distinct_rows(keys)[1]

    @cached_property
    def captured(self) -> np.ndarray:
        """Index (n,) of the stream capture that each call went into, or -1.

        It is one of its own thread, or of another thread if none of its own calls during it made a row:
        autograd's threads launch into the capture, too.
        """
        api, by_thread = self.api, np.full(len(self.api), -1, dtype=np.int64)
        by_time = by_thread.copy()
        for index, (process, thread, begin_ns, end_ns) in enumerate(self.windows.tolist()):
            during = (api.process == process) & (api.start_ns >= begin_ns) & (api.start_ns <= end_ns)
            by_thread[during & (self.threads == thread)] = index
            for peer in distinct(self.threads[during & (self.threads != thread)]).tolist():
                of_peer = during & (self.threads == peer)
                if not self.has_row[of_peer].any():
                    by_time[of_peer] = index
        return np.where(by_thread >= 0, by_thread, by_time)


# Of these tools every domain is a flag of its own; CUPTI's activities come together. XLA leaves out copies of
# AMD's GPUs, whose stream it does not know (xla/backends/profiler/gpu/rocm_collector.cc).
_BY_DOMAIN = ("rocpd", "rpd", "rocprofv3", "xplane amd")


def of_capture(capture: Capture) -> Evidence:
    return Evidence(
        capture.ops,
        capture.api,
        call_kinds(capture),
        launch_calls(capture),
        capture.strings,
        max(len(capture.processes), 1),
        not {capture.collector, f"{capture.collector} {capture.info.get('vendor')}"}.isdisjoint(_BY_DOMAIN),
        capture.processes.index(UNCLAIMED) if UNCLAIMED in capture.processes else -1,
    )


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
            # Captures of two streams may overlap on one thread: the first begin counts.
            begins.setdefault(thread, when)
        elif thread in begins or thread not in closed_threads:
            # Without a begin here the capture began before the recording did.
            windows.append((process[thread], thread, begins.pop(thread, -FOREVER), when))
        closed_threads.add(thread)
    windows += [(process[thread], thread, when, FOREVER) for thread, when in begins.items()]
    return np.array(windows, dtype=np.int64).reshape(-1, 4)
