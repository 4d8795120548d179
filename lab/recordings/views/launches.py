"""Who launched what, and in which profiler step; how busy the GPU was with what; which GEMMs ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lab.perfmodel.calls import OpCall
from lab.perfmodel.classes import CLASSES, kernel_class
from lab.perfmodel.communication import communication
from lab.perfmodel.products import factor_indices, has_bias, is_product, product_flops, product_of
from lab.recordings.calls import GRAPH_LAUNCH, LAUNCH, call_kinds, launch_calls, of_graphs
from lab.recordings.capture import MEMCPY, MEMSET, Capture, once
from lab.recordings.owners import first_index, operators_of_launches, parents
from lab.recordings.phase_names import step_number
from lab.recordings.tables import Table
from lab.stats.columns import columns_of_rows, distinct_rows, per_distinct
from lab.stats.intervals import holding, spans, subtract, total, totals, union


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
    launched_ns = np.append(trace.api.start_ns, 0)[call]
    return steps_at(trace, np.where(call >= 0, launched_ns, trace.ops.start_ns))


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
    pairs = np.stack([trace.ops.name_id, op], axis=1).astype(np.int64)
    class_of_row = per_distinct(pairs, lambda pair: CLASSES.index(kernel_class(*map(trace.name, pair))))
    class_of_row[trace.ops.kind == MEMCPY] = CLASSES.index("memcpy")
    class_of_row[trace.ops.kind == MEMSET] = CLASSES.index("memset")
    return class_of_row


COMP, COMM, MEMCOPY = 0, 1, 2
GLOO_PREFIX = "gloo:"
NOT_COMPUTATION = ("c10d::", "autograd::", "profiler::")


def gpu_timeline(
    trace: Capture, steps: Sequence[int] | None = None, *, linked_only: bool = False
) -> dict[str, float]:
    """Where the time went, in ms: computation, communication and copies as unions, and what is exposed.

    steps keeps only what ProfilerStep#N launched; linked_only leaves out kernels without a known op, as
    TraceLens does. Exposed communication is COMM minus COMP; exposed copies are MEMCPY minus COMP minus COMM.
    """
    by_class = _activity(trace, steps, linked_only)
    comp, comm, copy = (union(by_class[kind]) for kind in (COMP, COMM, MEMCOPY))
    busy = union(np.concatenate([comp, comm, copy]))
    total_ns = int(busy[-1, 1] - busy[0, 0]) if len(busy) else 0
    figures_ns = {
        "computation_time_ms": total(comp),
        "exposed_comm_time_ms": total(subtract(comm, comp)),
        "exposed_memcpy_time_ms": total(subtract(subtract(copy, comp), comm)),
        "busy_time_ms": total(busy),
        "idle_time_ms": total_ns - total(busy),
        "total_time_ms": total_ns,
        "total_comm_time_ms": total(comm),
        "total_memcpy_time_ms": total(copy),
    }
    return {name: ns / 1e6 for name, ns in figures_ns.items()}


@once
def classify(trace: Capture) -> np.ndarray:
    """COMP, COMM or MEMCOPY (n,) for each row of `kernels`; fills count as computation."""
    kernels = trace.ops
    is_comm, is_copy = (np.zeros(len(trace.strings) + 1, dtype=bool) for _ in range(2))
    for index in np.flatnonzero(np.bincount(kernels.name_id[kernels.name_id >= 0])).tolist():
        is_comm[index] = communication(trace.strings[index]) is not None
        is_copy[index] = "rocclr_copy" in trace.strings[index].lower()
    classes = np.full(len(kernels), COMP, dtype=np.int8)
    classes[(kernels.kind == MEMCPY) | is_copy[kernels.name_id]] = MEMCOPY
    classes[is_comm[kernels.name_id] & trace.work] = COMM
    classes[trace.collectives.kernel] = COMM
    return classes


def _activity(trace: Capture, steps: Sequence[int] | None, linked_only: bool) -> dict[int, np.ndarray]:
    if device_of(trace) == "cpu":
        return _cpu_activity(trace, steps)
    keep = np.ones(len(trace.ops), dtype=bool)
    if steps is not None:
        keep &= np.isin(kernel_steps(trace), list(steps))
    if linked_only:
        keep &= link_ops(trace) >= 0
    classes = classify(trace)
    slices = spans(trace.ops.start_ns, trace.ops.dur_ns)
    return {kind: slices[keep & (classes == kind)] for kind in (COMP, COMM, MEMCOPY)}


def _cpu_activity(trace: Capture, steps: Sequence[int] | None) -> dict[int, np.ndarray]:
    def of(table: Table, rule: Callable[[str], bool]) -> np.ndarray:
        keep = trace.by_text(rule, table.name_id)
        if steps is not None:
            keep &= np.isin(steps_at(trace, table.start_ns), list(steps))
        return spans(table.start_ns[keep], table.dur_ns[keep])

    comm = np.concatenate([of(trace.operators, _is_comm_op), of(trace.annotations, is_gloo)])
    return {COMP: of(trace.operators, is_computation), COMM: comm, MEMCOPY: comm[:0]}


def _is_comm_op(name: str) -> bool:
    return name.startswith("c10d::") or name == "record_param_comms"


def is_gloo(name: str) -> bool:
    return name.startswith(GLOO_PREFIX)


def is_computation(name: str) -> bool:
    """Operators have a namespace; autograd's and the profiler's only wrap or wait."""
    return "::" in name and not name.startswith(NOT_COMPUTATION)


@once
def gemm_instances(trace: Capture) -> Table:
    """One row per executed GEMM op, in order of time.

    Columns: op, M, N, K, B, bias, dtype, strides, transpose, ts_ns, dur_ns (union of its kernels; a
    memset of cuBLAS' workspace is none of them), rank, step, correlation (of its first kernel, -1 on a CPU),
    kernels (names joined by ` ; `), op_row, tid.
    transpose has a letter per factor: T where its last dimension is not the contiguous one. Sizes that
    were not recorded are -1.
    """
    gemms = _gemms_on_gpu(trace) if device_of(trace) == "gpu" else _gemms_on_cpu(trace)
    op_rows = gemms.pop("op_row")
    ops = trace.operators.take(op_rows)
    keys = np.stack([ops.name_id, ops.dims_id, ops.types_id, ops.strides_id], axis=1)
    distinct, shape_of_row = distinct_rows(keys)
    shapes = [_gemm_shape(*map(trace.name, key)) for key in distinct.tolist()]
    columns = columns_of_rows(shapes, _SHAPE)
    columns = {name: column[shape_of_row] for name, column in columns.items()} | gemms
    columns["rank"] = np.full(len(ops), -1 if trace.meta.rank is None else trace.meta.rank)
    columns["step"] = steps_at(trace, ops.start_ns)
    table = Table({**columns, "op_row": op_rows, "tid": ops.tid})
    return table.take(np.argsort(table.ts_ns, kind="stable"))


def gemm_flops(trace: Capture) -> np.ndarray:
    """FLOPs (n,) of each row of `ranges` that is a GEMM; -1 for others and for unknown shapes."""
    gemms = gemm_instances(trace)
    b, m, n, k = (getattr(gemms, name).astype(np.float64) for name in "BMNK")
    has_shape = (b >= 0) & (m >= 0) & (n >= 0) & (k >= 0)
    flop = np.zeros(len(b))
    for dtype in set(gemms.dtype):
        of_type = gemms.dtype == dtype
        flop[of_type] = product_flops(b, m, n, k, gemms.bias, dtype)[of_type]
    flops = np.full(len(trace.ranges), -1, dtype=np.int64)
    rows = trace.operator_rows[gemms.op_row]
    flops[rows] = np.where(has_shape & (flop < 2.0**62), flop, -1).astype(np.int64)
    return flops


def _gemms_on_gpu(trace: Capture) -> dict[str, Any]:
    link = link_ops(trace)
    linked = np.flatnonzero((link >= 0) & trace.work)
    rows = linked[trace.by_text(is_product, trace.operators.name_id[link[linked]])]
    rows = rows[np.lexsort((trace.ops.start_ns[rows], link[rows]))]
    op_rows, first_kernel, op_of_row = np.unique(link[rows], return_index=True, return_inverse=True)
    kernels = trace.ops.take(rows)
    names = trace.text(kernels.name_id)
    joined = names[first_kernel]
    ends = np.append(first_kernel[1:], len(rows))
    for group in np.flatnonzero(ends - first_kernel > 1).tolist():
        joined[group] = " ; ".join(names[first_kernel[group] : ends[group]])
    return {
        "op_row": op_rows,
        "ts_ns": kernels.start_ns[first_kernel],
        "dur_ns": totals(spans(kernels.start_ns, kernels.dur_ns), op_of_row.ravel(), len(op_rows)),
        "correlation": kernels.corr[first_kernel],
        "kernels": joined,
    }


def _gemms_on_cpu(trace: Capture) -> dict[str, Any]:
    rows = np.flatnonzero(trace.by_text(is_product, trace.operators.name_id))
    ops = trace.operators.take(rows)
    parent, wraps = parents(ops), np.zeros(len(rows), dtype=bool)
    wraps[parent[parent >= 0]] = True
    rows = rows[~wraps]
    return {
        "op_row": rows,
        "ts_ns": trace.operators.start_ns[rows],
        "dur_ns": trace.operators.dur_ns[rows],
        "correlation": np.full(len(rows), -1, dtype=np.int64),
        "kernels": trace.text(trace.operators.name_id[rows]),
    }


_SHAPE = ("op", "M", "N", "K", "B", "bias", "dtype", "strides", "transpose")


def _gemm_shape(op: str, dims: str, types: str, strides: str) -> dict[str, Any]:
    """Describe one product by what the profiler wrote about its arguments; unknown sizes stay -1."""
    call = OpCall.from_profiler(op, dims, types, strides)
    left, right = factor_indices(op)
    left_stride, right_stride = ([*(call.stride(index) or ())] for index in (left, right))
    product = product_of(call)
    return {
        **{name: getattr(product, name) if product else -1 for name in "MNKB"},
        "op": op,
        "bias": has_bias(call),
        "dtype": call.dtype(left),
        "strides": " ".join(str(tuple(stride)) for stride in (left_stride, right_stride) if stride),
        "transpose": _letter(left_stride) + _letter(right_stride),
    }


def _letter(stride: list[int]) -> str:
    if len(stride) < 2:
        return "?"
    return "T" if stride[-1] != 1 and stride[-2] == 1 else "N"
