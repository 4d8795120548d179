"""Which operator launched which kernel, and in which profiler step."""

from __future__ import annotations

import numpy as np

from lab.perfmodel.classes import CLASSES, kernel_class
from lab.recordings.calls import GRAPH_LAUNCH, LAUNCH, call_kinds, launch_calls, of_graphs
from lab.recordings.capture import MEMCPY, MEMSET, Capture, once
from lab.recordings.owners import first_index, operators_of_launches, parents
from lab.recordings.phase_names import step_number
from lab.recordings.tables import Table
from lab.stats.columns import distinct_rows
from lab.stats.intervals import holding


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
    # Where the call is not here, the id is all there is, unless it is the kernel's own (pytorch/kineto#1001).
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
    number = trace.by_text(step_number, trace.annotations.name_id, -1)
    marks = trace.annotations.with_columns(number=number).where(number >= 0)
    marks = marks.take(np.argsort(marks.start_ns, kind="stable"))
    steps: np.ndarray = np.append(marks.number, -1)[holding(marks.start_ns, marks.end_ns, ts_ns)]
    return steps


@once
def op_parents(trace: Capture) -> np.ndarray:
    """Row of the innermost op around each op of the trace on its own thread (n,), or -1."""
    return parents(trace.operators)


@once
def row_classes(trace: Capture) -> np.ndarray:
    """Index (n,) in `perfmodel.classes.CLASSES` of each row of `kernels`, by its op first."""
    op = np.append(trace.operators.name_id, -1)[link_ops(trace)]
    pairs, pair_of_row = distinct_rows(np.stack([trace.ops.name_id, op], axis=1).astype(np.int64))
    classes = [CLASSES.index(kernel_class(*trace.text(pair).tolist())) for pair in pairs]
    class_of_row: np.ndarray = np.array(classes, dtype=np.int64)[pair_of_row.ravel()]
    class_of_row[trace.ops.kind == MEMCPY] = CLASSES.index("memcpy")
    class_of_row[trace.ops.kind == MEMSET] = CLASSES.index("memset")
    return class_of_row
