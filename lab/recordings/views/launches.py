"""Which operator launched which kernel, and in which profiler step."""

from __future__ import annotations

import numpy as np

from lab.recordings.calls import GRAPH_LAUNCH, LAUNCH, call_kinds, launch_calls, of_graphs
from lab.recordings.capture import Capture, once
from lab.recordings.owners import first_index, operators_of_launches
from lab.recordings.phase_names import step_number
from lab.recordings.tables import Table


def device_of(trace: Capture) -> str:
    """`gpu`, or `cpu` where CPU ops have to stand in for kernels: nothing was launched on a GPU.

    Launches without a row are a recording that lost them all, and no CPU op stands for those.
    """
    if len(trace.ops):
        return "gpu"
    launches = np.isin(call_kinds(trace), (LAUNCH, GRAPH_LAUNCH))
    return "gpu" if launches.any() else "cpu"


@once
def link_ops(trace: Capture) -> np.ndarray:
    """Row of `ops` that launched each row of `kernels` (n,), -1 where no operator did, or none that is known.

    By External id or the innermost op around the launching call (`lab.recordings.owners`). A kernel of a
    graph has none here: its op ran at the capture, and its External id is that of the op around the graph's
    launch (`lab.recordings.graphs` finds the op).
    """
    return np.where(of_graphs(trace, launch_calls(trace)), -1, _owners(trace).op)


def linked_by_id(trace: Capture) -> np.ndarray:
    """Mask (n,) of `kernels`: the recorder's External id named the operator of `link_ops`."""
    mask: np.ndarray = _owners(trace).by_id
    return mask


@once
def _owners(trace: Capture) -> Table:
    """Columns op and by_id (n,) of each row of `kernels`."""
    external_id, call = trace.ops.external_id, launch_calls(trace)
    # Where the call is not here, the id is all there is, unless it is the kernel's own number (kineto#1001).
    alone = (call < 0) & (external_id != trace.ops.corr)
    op = np.where(alone, first_index(external_id, trace.operators.external_id), -1)
    by_id = op >= 0
    called = np.flatnonzero(call >= 0)
    calls = trace.api.take(call[called])
    op[called], by_id[called] = operators_of_launches(
        trace.operators, external_id[called], calls.pid, calls.tid, calls.start_ns
    )
    return Table({"op": op, "by_id": by_id})


@once
def kernel_steps(trace: Capture) -> np.ndarray:
    """Profiler step (n,) that launched each row of `kernels` (an unlinked one: in which it ran), or -1."""
    call = launch_calls(trace)
    when = trace.ops.start_ns.copy()
    when[call >= 0] = trace.api.start_ns[call[call >= 0]]
    return steps_at(trace, when)


def steps_at(trace: Capture, ts_ns: np.ndarray) -> np.ndarray:
    """Number N of the ProfilerStep#N range around each time (n,), -1 outside all."""
    numbers = np.array([*(step_number(text) for text in trace.strings), -1])
    marks = trace.annotations.where(numbers[trace.annotations.name_id] >= 0)
    marks = marks.take(np.argsort(marks.start_ns, kind="stable"))
    if len(marks) == 0:
        return np.full(len(ts_ns), -1)
    index = np.searchsorted(marks.start_ns, ts_ns, side="right") - 1
    inside = (index >= 0) & (ts_ns < marks.end_ns[index])
    return np.where(inside, numbers[marks.name_id[index]], -1)
