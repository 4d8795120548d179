"""API calls: what each owes the GPU timeline by its name, which rows it launched, which graph it is of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.recordings.capture import GRAPH, Capture, once
from lab.recordings.owners import first_index
from lab.stats.columns import distinct, distinct_rows, per_distinct

# Kinds of calls. FILL: a memset, which makes a row only if it has bytes to set and no library hides it. WAIT:
# for everything on the device.
OTHER, LAUNCH, GRAPH_LAUNCH, COPY, FILL, BEGIN_CAPTURE, END_CAPTURE, WAIT = range(8)

UNIFIED = 11  # copy_kind from here on: migrations of unified memory (`capture.COPY_KINDS`)
FOREVER = np.iinfo(np.int64).max
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
    return per_distinct(name_ids, lambda index: kind_of(strings[index]) if index >= 0 else OTHER)


def kind_of(name: str) -> int:
    """The kind of one call."""
    bare = _VERSION.sub("", name)
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(bare)), OTHER)


@once
def call_kinds(capture: Capture) -> np.ndarray:
    """The kind (n,) of each row of `api`."""
    return kinds_of(capture.strings, capture.api.name_id)


@once
def launch_calls(capture: Capture) -> np.ndarray:
    """The row of `api` that launched each row of `ops` (n,), by process and correlation; -1 where it is not
    here."""
    ops, api = capture.ops, capture.api
    return first_index(*pair_keys((ops.process, ops.corr), (api.process, api.corr)))


def pair_keys(*columns: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
    """One number for equal (process, id) in all of these columns; -1 for an id that was not recorded, which
    recorders write as 0."""
    process, number = (np.concatenate(parts).astype(np.int64) for parts in zip(*columns, strict=True))
    keys = number
    if len(process) and (process != process[0]).any():
        distinct_numbers, dense = np.unique(number, return_inverse=True)
        keys = process * len(distinct_numbers) + dense.ravel()
    keys = np.where(number > 0, keys, -1)
    return np.split(keys, np.cumsum([len(part) for part, _ in columns])[:-1])


def of_graphs(capture: Capture, call: np.ndarray) -> np.ndarray:
    """Mask (n,) of `ops`: launched by a graph replay; call (n,): of `launch_calls`."""
    by_call = np.append(call_kinds(capture) == GRAPH_LAUNCH, False)[call]
    replayed: np.ndarray = by_call | (capture.ops.graph_node > 0)
    return replayed


def in_graph(capture: Capture) -> np.ndarray:
    """Mask (n,) of `ops`: single rows that a graph replay made, not a replay in one row."""
    mask: np.ndarray = of_graphs(capture, launch_calls(capture)) & (capture.ops.kind != GRAPH)
    return mask


def replays_graphs(capture: Capture) -> bool:
    """Whether any GPU row of a recording was made by a graph, or any call launched one."""
    return bool((call_kinds(capture) == GRAPH_LAUNCH).any() or (capture.ops.graph_node > 0).any())


@once
def has_row(capture: Capture) -> np.ndarray:
    """Whether a GPU row of the same process carries the correlation of each call (n,)."""
    api, ops = capture.api, capture.ops
    joined: np.ndarray = first_index(*pair_keys((api.process, api.corr), (ops.process, ops.corr))) >= 0
    return joined


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
    spans: list[tuple[int, int, int, int]] = []
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
            spans.append((process[thread], thread, begins.pop(thread, -FOREVER), when))
        closed_threads.add(thread)
    spans += [(process[thread], thread, when, FOREVER) for thread, when in begins.items()]
    return np.array(spans, dtype=np.int64).reshape(-1, 4)


@dataclass(frozen=True)
class Replays:
    """Graph launches in order of their first row: rows of replay r are rows[bounds[r]:bounds[r + 1]].

    rows (k,) of `ops`, by stream, then start; call (r,) of `api`, or -1.
    """

    rows: np.ndarray
    bounds: np.ndarray
    call: np.ndarray

    def __len__(self) -> int:
        return len(self.call)

    def of(self, index: int) -> np.ndarray:
        return self.rows[self.bounds[index] : self.bounds[index + 1]]


def replays_of(capture: Capture, inside: np.ndarray) -> Replays:
    """The replays that made the GPU rows `inside` (n,); a replay is one (process, correlation)."""
    rows = np.flatnonzero(inside)
    ops = capture.ops.take(rows)
    replay = distinct_rows(np.stack([ops.process.astype(np.int64), ops.corr], axis=1))[1]
    began = np.full(replay.max(initial=-1) + 1, FOREVER)
    np.minimum.at(began, replay, ops.start_ns)
    rank = np.empty(len(began), dtype=np.int64)
    rank[np.argsort(began, kind="stable")] = np.arange(len(began))
    replay = rank[replay]
    order = np.lexsort((ops.end_ns, ops.start_ns, ops.stream, replay))
    bounds = np.searchsorted(replay[order], np.arange(len(began) + 1))
    rows = rows[order]
    return Replays(rows, bounds, launch_calls(capture)[rows[bounds[:-1]]])
