"""Which matrix products ran, with their sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.perfmodel.calls import OpCall
from lab.perfmodel.products import factor_indices, has_bias, is_product, product_flops, product_of
from lab.recordings.capture import Capture, once
from lab.recordings.owners import parents
from lab.recordings.tables import Table
from lab.recordings.views.launches import device_of, link_ops, steps_at
from lab.stats.columns import columns_of_rows, distinct_rows
from lab.stats.intervals import spans, totals


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
    columns = columns_of_rows(shapes, tuple(_UNKNOWN_SHAPE))
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


_UNKNOWN_SHAPE: dict[str, Any] = {
    "op": "",
    "M": -1,
    "N": -1,
    "K": -1,
    "B": -1,
    "bias": False,
    "dtype": "",
    "strides": "",
    "transpose": "",
}


def _gemm_shape(op: str, dims: str, types: str, strides: str) -> dict[str, Any]:
    """Describe one product by what the profiler wrote about its arguments; unknown sizes stay -1."""
    call = OpCall.from_profiler(op, dims, types, strides)
    left, right = factor_indices(op)
    left_stride, right_stride = ([*(call.stride(index) or ())] for index in (left, right))
    shape = {
        **_UNKNOWN_SHAPE,
        "op": op,
        "bias": has_bias(call),
        "dtype": call.dtype(left),
        "strides": " ".join(str(tuple(stride)) for stride in (left_stride, right_stride) if stride),
        "transpose": _letter(left_stride) + _letter(right_stride),
    }
    product = product_of(call)
    return shape | ({name: getattr(product, name) for name in "BMNK"} if product else {})


def _letter(stride: list[int]) -> str:
    if len(stride) < 2:
        return "?"
    return "T" if stride[-1] != 1 and stride[-2] == 1 else "N"
