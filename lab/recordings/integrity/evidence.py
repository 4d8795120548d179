"""Views that the rules rest on: how calls and GPU rows join, which calls went into stream captures."""

from __future__ import annotations

import numpy as np

from lab.recordings.calls import BEGIN_CAPTURE, END_CAPTURE, call_kinds, launch_calls, of_graphs, pair_keys
from lab.recordings.capture import Capture, once
from lab.recordings.owners import first_index
from lab.stats.columns import distinct, distinct_rows

UNIFIED = 11  # copy_kind from here on: migrations of unified memory (`capture.COPY_KINDS`)
FOREVER = np.iinfo(np.int64).max


@once
def has_row(capture: Capture) -> np.ndarray:
    """Whether a GPU row of the same process carries the correlation of each call (n,)."""
    api, ops = capture.api, capture.ops
    found: np.ndarray = first_index(*pair_keys((api.process, api.corr), (ops.process, ops.corr))) >= 0
    return found


def uncalled(capture: Capture) -> np.ndarray:
    """Mark the GPU rows (n,) that no call owes: what the GPU did by itself (page migrations)."""
    migrated: np.ndarray = capture.ops.copy_kind >= UNIFIED
    return migrated


@once
def replayed(capture: Capture) -> np.ndarray:
    """Mark the GPU rows (n,) that a graph made, by their graph, their node or the call that launched it."""
    of_graph: np.ndarray = of_graphs(capture, launch_calls(capture)) | (capture.ops.graph > 0)
    return of_graph


@once
def threads(capture: Capture) -> np.ndarray:
    """The thread (n,) of each call, as a dense index over process, pid and tid."""
    # Thread ids repeat between processes, so a thread is known by all three.
    api = capture.api
    keys = np.stack([api.process, api.pid, api.tid], axis=1).astype(np.int64)
    if not len(keys) or (keys == keys[0]).all():
        return np.zeros(len(keys), dtype=np.int64)
    return distinct_rows(keys)[1]


@once
def capture_of_call(capture: Capture) -> np.ndarray:
    """Index (n,) of the stream capture that each call went into, or -1.

    It is one of its own thread, or of another thread if none of its own calls during it made a row:
    autograd's threads launch into the capture, too.
    """
    api, by_thread = capture.api, np.full(len(capture.api), -1, dtype=np.int64)
    by_time = by_thread.copy()
    for index, (process, thread, begin_ns, end_ns) in enumerate(capture_windows(capture).tolist()):
        during = (api.process == process) & (api.start_ns >= begin_ns) & (api.start_ns <= end_ns)
        by_thread[during & (threads(capture) == thread)] = index
        for peer in distinct(threads(capture)[during & (threads(capture) != thread)]).tolist():
            of_peer = during & (threads(capture) == peer)
            if not has_row(capture)[of_peer].any():
                by_time[of_peer] = index
    return np.where(by_thread >= 0, by_thread, by_time)


@once
def capture_windows(capture: Capture) -> np.ndarray:
    """Stream captures (m, 4): process, thread (an index of `threads`), first and last ns.

    Begin to end on one thread; a window that the recording cuts off runs to that edge.
    """
    kinds, thread_of, api = call_kinds(capture), threads(capture), capture.api
    begin, end = kinds == BEGIN_CAPTURE, kinds == END_CAPTURE
    if not (begin | end).any():
        return np.empty((0, 4), dtype=np.int64)
    rows = np.flatnonzero(begin | end)
    rows = rows[np.lexsort((api.start_ns[rows], thread_of[rows]))]
    found: list[tuple[int, int, int, int]] = []
    begins: dict[int, int] = {}
    closed_threads: set[int] = set()
    process: dict[int, int] = {}
    for row in rows.tolist():
        thread, when = int(thread_of[row]), int(api.start_ns[row])
        process[thread] = int(api.process[row])
        if begin[row]:
            # Captures of two streams may overlap on one thread: the first begin counts.
            begins.setdefault(thread, when)
        elif thread in begins or thread not in closed_threads:
            # Without a begin here the capture began before the recording did.
            found.append((process[thread], thread, begins.pop(thread, -FOREVER), when))
        closed_threads.add(thread)
    found += [(process[thread], thread, when, FOREVER) for thread, when in begins.items()]
    return np.array(found, dtype=np.int64).reshape(-1, 4)
