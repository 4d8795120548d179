"""Which operator launched which kernel, and in which profiler step."""

from __future__ import annotations

import re

import numpy as np

from lab.recordings.tables import Table, Trace, once

STEP_PREFIX = "ProfilerStep#"
_GRAPH_LAUNCH = re.compile(r"(cuda|hip|cu)GraphLaunch")


def device_of(trace: Trace) -> str:
    """`gpu`, or `cpu` where CPU ops have to stand in for kernels."""
    return "gpu" if len(trace.kernels) else "cpu"


@once
def link_ops(trace: Trace) -> np.ndarray:
    """Row of `ops` that launched each row of `kernels` (n,), -1 where the launch was not recorded.

    By External id; else by correlation to the runtime call, then the innermost op around it on its thread.
    A kernel of a graph has none here: its op ran at the capture, and its External id is that of the op around
    the graph's launch (`lab.recordings.graphs` finds the op).
    """
    by_id = first_index(trace.kernels.external_id, trace.ops.external_id)
    call = launch_calls(trace)
    todo = np.flatnonzero((by_id < 0) & (call >= 0))
    if len(todo):
        calls = trace.runtime.take(call[todo])
        by_id[todo] = innermost(trace.ops, calls.pid, calls.tid, calls.ts_ns)
    by_id[of_graphs(trace, call)] = -1
    return by_id


def launches_graph(name: str) -> bool:
    """Whether an API call of this name replays a graph, on CUDA or HIP."""
    return bool(_GRAPH_LAUNCH.match(name))


def of_graphs(trace: Trace, call: np.ndarray) -> np.ndarray:
    """Mask (n,) of `kernels`: launched by a graph replay; call (n,): its row of `runtime`, or -1."""
    is_graph = np.array([*map(launches_graph, trace.strings), False])
    names = np.append(trace.runtime.name_id, -1)[call]
    found: np.ndarray = is_graph[names] | (trace.kernels.graph_node > 0)
    return found


@once
def launch_calls(trace: Trace) -> np.ndarray:
    """Row of `runtime` that launched each row of `kernels` (n,), or -1."""
    return first_index(trace.kernels.correlation, trace.runtime.correlation)


@once
def kernel_steps(trace: Trace) -> np.ndarray:
    """Profiler step (n,) that launched each row of `kernels` (an unlinked one: in which it ran), or -1."""
    call = launch_calls(trace)
    when = trace.kernels.ts_ns.copy()
    when[call >= 0] = trace.runtime.ts_ns[call[call >= 0]]
    return steps_at(trace, when)


def steps_at(trace: Trace, ts_ns: np.ndarray) -> np.ndarray:
    """Number N of the ProfilerStep#N range around each time (n,), -1 outside all."""
    numbers = np.array([*(step_number(text) for text in trace.strings), -1])
    found = trace.ranges.where((numbers[trace.ranges.name_id] >= 0) & ~trace.ranges.on_gpu)
    found = found.take(np.argsort(found.ts_ns, kind="stable"))
    if len(found) == 0:
        return np.full(len(ts_ns), -1)
    index = np.searchsorted(found.ts_ns, ts_ns, side="right") - 1
    inside = (index >= 0) & (ts_ns < found.ts_ns[index] + found.dur_ns[index])
    return np.where(inside, numbers[found.name_id[index]], -1)


def innermost(ops: Table, pid: np.ndarray, tid: np.ndarray, ts_ns: np.ndarray) -> np.ndarray:
    """Row of the innermost op that runs at each (pid, tid, time) (n,), or -1."""
    result = np.full(len(ts_ns), -1, dtype=np.int64)
    for where in sorted(set(zip(pid.tolist(), tid.tolist(), strict=True))):
        rows, parents = thread_nesting(ops, *where)
        if len(rows) == 0:
            continue
        asked = np.flatnonzero((pid == where[0]) & (tid == where[1]))
        at = ts_ns[asked]
        ends = ops.ts_ns[rows] + ops.dur_ns[rows]
        index = np.searchsorted(ops.ts_ns[rows], at, side="right") - 1
        while (over := (index >= 0) & (ends[index] < at)).any():
            index[over] = parents[index[over]]
        result[asked] = np.where(index >= 0, rows[index], -1)
    return result


def step_number(text: str) -> int:
    digits = text.removeprefix(STEP_PREFIX)
    return int(digits) if digits != text and digits.isdecimal() and len(digits) < 10 else -1


def first_index(wanted: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Index in `among` (m,) of each `wanted` (n,): the first of equals; -1 for none and for negative ids."""
    if len(among) == 0:
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(among, kind="stable")
    index = np.minimum(np.searchsorted(among[order], wanted), len(among) - 1)
    found = order[index]
    return np.where((among[found] == wanted) & (wanted >= 0), found, -1)


def thread_nesting(ops: Table, pid: int, tid: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (m,) of one thread by start, longest first, and the index of each one's parent in them, or -1."""
    rows = np.flatnonzero((ops.pid == pid) & (ops.tid == tid))
    rows = rows[np.lexsort((-ops.dur_ns[rows], ops.ts_ns[rows]))]
    ends = (ops.ts_ns[rows] + ops.dur_ns[rows]).tolist()
    parents = np.full(len(rows), -1, dtype=np.int64)
    open_indices: list[int] = []
    for index, end in enumerate(ends):
        while open_indices and ends[open_indices[-1]] < end:
            open_indices.pop()
        parents[index] = open_indices[-1] if open_indices else -1
        open_indices.append(index)
    return rows, parents
