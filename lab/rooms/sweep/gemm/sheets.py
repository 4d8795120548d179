"""The sheets of a performance workbook, from one trace.

Names and order of sheets and columns are those of TraceLens (AMD-AGI/TraceLens, `generate_perf_report`), so that
its users find their way; columns of our own follow after theirs. Times of an op are unions of its kernels.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lab.recordings import views
from lab.recordings.tables import KERNEL, Table, Trace
from lab.rooms.sweep.gemm import families
from lab.stats.intervals import enclosing, spans, totals
from lab.stats.robust import grouped

S5 = ("mean", "median", "std", "min", "max")
SHORT_US = 10.0
BINS = 100
CUM = ["Percentage (%)", "Cumulative Percentage (%)"]
ROWS_OF_TIMELINE = [
    "computation_time",
    "exposed_comm_time",
    "exposed_memcpy_time",
    "busy_time",
    "idle_time",
    "total_time",
    "total_comm_time",
    "total_memcpy_time",
]
GEMM_GROUP = ["op", "B", "M", "N", "K", "bias", "strides", "dtype", "dims", "transpose"]
# Our columns of the GEMM sheet, after those of TraceLens.
EXTRAS = [
    "mad_us",
    "cv",
    "p5_us",
    "p95_us",
    "family",
    "num_kernel_names",
    "free_n",
    "free_median_us",
    "overlapped_n",
    "overlapped_median_us",
]
COMPUTE = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "signed char": "int8",
    **dict.fromkeys(
        ("c10::Float8_e4m3fn", "c10::Float8_e5m2", "c10::Float8_e4m3fnuz", "c10::Float8_e5m2fnuz"), "fp8"
    ),
}
WHO = ["process_name", "process_label", "thread_name"]
ARGUMENTS = {
    "Input Dims": "dims_id",
    "Input type": "types_id",
    "Input Strides": "strides_id",
    "Concrete Inputs": "concrete_id",
}


@dataclass(frozen=True)
class Launches:
    """Which op launched which kernel, computed once for all sheets.

    link is the row of `ops` of each kernel (n,) or -1; launchers the rows (m,) of ops that launched any, and
    launcher the index into them of each kernel (n,) or -1. direct_us and subtree_us (m,) are unions of the
    op's own kernels and of those of the ops inside it too; category (m,) and kernel_category (n,) are texts.
    """

    trace: Trace
    link: np.ndarray
    launchers: np.ndarray
    launcher: np.ndarray
    direct_us: np.ndarray
    subtree_us: np.ndarray
    category: np.ndarray
    kernel_category: np.ndarray

    @property
    def ops(self) -> Table:
        return self.trace.ops.take(self.launchers)


def launches(trace: Trace) -> Launches:
    """Link the kernels of a trace to its ops and add up their time."""
    link = views.link_ops(trace)
    linked = np.flatnonzero(link >= 0)
    launchers, index = np.unique(link[linked], return_inverse=True)
    launcher = np.full(len(link), -1, dtype=np.int64)
    launcher[linked] = index
    every = spans(trace.kernels.ts_ns, trace.kernels.dur_ns)
    op, kernel = _ancestry(trace.ops, link, launchers)
    of_kernel = _kernel_categories(trace, link)
    first = linked[np.lexsort((trace.kernels.ts_ns[linked], index))]
    first = first[np.unique(launcher[first], return_index=True)[1]]
    return Launches(
        trace=trace,
        link=link,
        launchers=launchers,
        launcher=launcher,
        direct_us=totals(every[linked], index, len(launchers)) / 1000,
        subtree_us=totals(every[kernel], op, len(launchers)) / 1000,
        category=of_kernel[first],
        kernel_category=of_kernel,
    )


def perf_sheets(found: Launches, gemm: pd.DataFrame, collectives: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Every sheet of one rank's workbook; gemm and collectives are the sheets that other modules make."""
    timeline = gpu_timeline(found.trace)
    total_us = 1000 * float(timeline["time ms"].iloc[ROWS_OF_TIMELINE.index("total_time")])
    summary = ops_summary(found)
    return {
        "gpu_timeline": timeline,
        "ops_summary_by_category": ops_summary_by_category(found),
        "ops_summary": summary,
        "ops_unique_args": ops_unique_args(found),
        "GEMM": gemm[[name for name in gemm if not str(name).startswith("_")]],
        "kernel_summary": kernel_summary(found, total_us),
        "short_kernel_histogram": short_kernel_histogram(found.trace),
        "short_kernels_summary": short_kernels_summary(found, total_us),
        "coll_analysis": collectives,
    }


def gpu_timeline(trace: Trace) -> pd.DataFrame:
    """Where the time went. As in TraceLens `time ms` leaves out kernels whose launch was not recorded."""
    columns = {}
    for suffix, linked_only in (("", True), (" (all kernels)", False)):
        figures = views.gpu_timeline(trace, linked_only=linked_only)
        time_ms = [figures[f"{row}_ms"] for row in ROWS_OF_TIMELINE]
        total_ms = figures["total_time_ms"]
        columns[f"time ms{suffix}"] = time_ms
        columns[f"percent{suffix}"] = [100 * ms / total_ms if total_ms else np.nan for ms in time_ms]
    result: pd.DataFrame = pd.DataFrame({"type": ROWS_OF_TIMELINE, **columns})
    return result


def ops_summary_by_category(found: Launches) -> pd.DataFrame:
    names, group = np.unique(found.category.astype(str), return_inverse=True)
    frame = pd.DataFrame(
        {
            "op category": names,
            "Count": np.bincount(group, minlength=len(names)),
            "total_direct_kernel_time_ms": np.bincount(group, found.direct_us, len(names)) / 1000,
        }
    )
    return _ranked(frame, "total_direct_kernel_time_ms")


def ops_summary(found: Launches) -> pd.DataFrame:
    """One row per name of an op that launched kernels itself."""
    name_ids, group = np.unique(found.ops.name_id, return_inverse=True)
    n = len(name_ids)
    direct, subtree = (np.bincount(group, us, n) for us in (found.direct_us, found.subtree_us))
    categories: list[set[str]] = [set() for _ in range(n)]
    for at, category in set(zip(group.tolist(), found.category.tolist(), strict=True)):
        categories[at].add(category)
    frame = pd.DataFrame(
        {
            "name": found.trace.text(name_ids),
            "total_direct_kernel_time_sum": direct,
            "total_subtree_kernel_time_sum": subtree,
            "total_direct_kernel_time_ms": direct / 1000,
            "total_subtree_kernel_time_ms": subtree / 1000,
            "Count": np.bincount(group, minlength=n),
            "Categories": [str(sorted(each)) for each in categories],
        }
    )
    return _ranked(frame, "total_direct_kernel_time_ms")


def ops_unique_args(found: Launches) -> pd.DataFrame:
    """One row per op name, thread and set of arguments."""
    ops, text = found.ops, found.trace.text
    keys = np.stack([ops.name_id, *(getattr(ops, name) for name in ARGUMENTS.values()), ops.pid, ops.tid], 1)
    distinct, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    group, n = group.ravel(), len(distinct)
    direct, subtree = grouped(found.direct_us, group, n), grouped(found.subtree_us, group, n)
    readable = _Cached(lambda index: _as_tuple(text(np.array([index]))[0]))
    pairs = {
        f"total_{which}_kernel_time_{statistic}": stats[statistic]
        for statistic in (*S5, "sum")
        for which, stats in (("direct", direct), ("subtree", subtree))
    }
    frame = pd.DataFrame(
        {
            "name": text(ops.name_id[first]),
            "op category": found.category[first],
            **who(found.trace, ops.pid[first], ops.tid[first]),
            **{
                title: [readable[i] for i in getattr(ops, name)[first].tolist()]
                for title, name in ARGUMENTS.items()
            },
            "operation_count": direct["count"],
            **pairs,
            "ex_UID": ops.external_id[first],
            **kernel_details(found, np.where(found.launcher >= 0, group[found.launcher], -1), n),
        }
    )
    return _ranked(frame, "total_direct_kernel_time_sum")


def gemm_sheet(found: Launches, gemm: Table) -> pd.DataFrame:
    """One row per GEMM shape that an op launched, most time first; `gemm` as `tables.gemm_table` makes it.

    The last columns, whose names start with _, are the group's key and not for a workbook.
    """
    gemm = gemm.where(gemm.op_row >= 0)
    frame = pd.DataFrame({name: getattr(gemm, name) for name in GEMM_GROUP})
    group = frame.groupby(GEMM_GROUP, sort=False).ngroup().to_numpy()
    n = int(group.max()) + 1 if len(group) else 0
    first = np.unique(group, return_index=True)[1]
    shape = frame.iloc[first].reset_index(drop=True)
    arguments = op_arguments(found.trace, gemm.op_row[first])
    gflops, moved_bytes = _work(shape, arguments)
    dur_us = gemm.dur_ns / 1000
    stats = grouped(dur_us, group, n, (5, 95))
    rates = {
        "TB/s": grouped(moved_bytes[group] / dur_us / 1e6, group, n),
        "TFLOPS/s": grouped(gflops[group] / dur_us * 1e3, group, n),
    }
    tid = gemm.tid[first]
    sheet = pd.DataFrame(
        {
            "name": shape["op"],
            **{f"param: {name}": shape[name] for name in ("B", "M", "N", "K", "bias")},
            **_factors(arguments, shape),
            "GFLOPS_first": gflops,
            "Data Moved (MB)_first": moved_bytes / 2**20,
            "FLOPS/Byte_first": gflops * 1e9 / moved_bytes,
            **{f"{rate}_{key}": values[key] for rate, values in rates.items() for key in S5},
            **{
                f"{name}_first": column
                for name, column in who(found.trace, found.trace.ops.pid[gemm.op_row[first]], tid).items()
            },
            "Compute Spec": [f"matrix_{COMPUTE.get(dtype, dtype)}" for dtype in shape["dtype"]],
            **_gemm_details(found, gemm, group, n),
            **{f"{title}_first": column for title, column in arguments.items()},
            **{f"Kernel Time (µs)_{key}": stats[key] for key in (*S5, "sum")},
            "name_count": stats["count"],
            "UID_first": gemm.uid[first],
            **_gemm_extras(gemm, group, stats),
            **{f"_{name}": shape[name] for name in GEMM_GROUP},
        }
    )
    result: pd.DataFrame = sheet.sort_values(
        "Kernel Time (µs)_sum", ascending=False, kind="stable", ignore_index=True
    )
    return result


def coll_analysis(collectives: Table, rank: int) -> pd.DataFrame:
    """One row per kind, size and stream of a rank's collectives; sizes in MiB as in TraceLens."""
    frame = pd.DataFrame(
        {
            "rank": rank,
            "Process Group Name": collectives.pg_name,
            "Process Group Ranks": collectives.pg_ranks,
            "Collective name": collectives.collective,
            "Group size": collectives.group_size,
            "dtype": collectives.dtype,
            "In msg nelems": collectives.in_nelems,
            "Out msg nelems": collectives.out_nelems,
            **{f"{side} split size": splits(collectives, side.lower()) for side in ("In", "Out")},
            "stream": collectives.stream,
        }
    )
    key = list(frame)
    size = _dtype_bytes(frame["dtype"])
    for side in ("In", "Out"):
        frame[f"{side} msg size (MB)_first"] = frame[f"{side} msg nelems"] * size / 2**20
    frame["dur"] = collectives.dur_ns / 1000
    aggregates = {
        f"{side} msg size (MB)_first": (f"{side} msg size (MB)_first", "first") for side in ("In", "Out")
    }
    aggregates |= {f"dur_{how}": ("dur", how) for how in ("sum", "mean", "std", "min", "max")}
    result: pd.DataFrame = (
        frame.groupby(key, sort=True).agg(**aggregates, operation_count=("dur", "size")).reset_index()
    )
    return result


def splits(table: Table, side: str) -> np.ndarray:
    """The split sizes of one side, `in` or `out`, as text (n,); profilers write the list as text or as a list."""
    return _objects([text.strip('"') for text in getattr(table, f"{side}_split").tolist()])


def kernel_summary(found: Launches, total_us: float) -> pd.DataFrame:
    """One row per op, kernel and stream; kernels whose launch was not recorded have no op."""
    kernels = found.trace.kernels
    rows = np.flatnonzero(kernels.kind == KERNEL)
    link, kernels = found.link[rows], kernels.take(rows)
    op_name = np.where(link >= 0, found.trace.ops.name_id[link] if len(found.trace.ops) else -1, -1)
    keys = np.stack([op_name, kernels.name_id, kernels.stream], axis=1)
    distinct, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    stats = grouped(kernels.dur_ns / 1000, group.ravel(), len(distinct), (95,))
    names = found.trace.text(distinct[:, 1])
    frame = pd.DataFrame(
        {
            "Parent op category": found.kernel_category[rows][first],
            "Parent cpu_op": found.trace.text(distinct[:, 0]),
            "Kernel name": names,
            "Kernel stream": distinct[:, 2],
            **{f"Kernel duration (µs)_{key}": stats[key] for key in ("sum", "count", "mean", "min", "max")},
            "Percent of kernels time (%)": _percent(stats["sum"], stats["sum"].sum()),
            "Percent of total time (%)": _percent(stats["sum"], total_us),
            **{f"{key}_us": stats[key] for key in ("median", "mad", "p95")},
            "family": [families.family(name) for name in names],
        }
    )
    result: pd.DataFrame = frame.sort_values(
        "Kernel duration (µs)_sum", ascending=False, kind="stable", ignore_index=True
    )
    return result


def short_kernel_histogram(trace: Trace) -> pd.DataFrame:
    """Kernels below 10 µs in 100 bins between the shortest and the longest of them."""
    dur_us = trace.kernels.dur_ns[trace.kernels.kind == KERNEL] / 1000
    count, edges = np.histogram(dur_us[dur_us < SHORT_US], bins=BINS)
    some = slice(None) if count.sum() else slice(0)
    result: pd.DataFrame = pd.DataFrame(
        {"bin_start": edges[:-1][some], "bin_end": edges[1:][some], "count": count[some]}
    )
    return result


def short_kernels_summary(found: Launches, total_us: float) -> pd.DataFrame:
    """Kernels below 10 µs by the op that launched them and its arguments."""
    kernels = found.trace.kernels
    is_short = (kernels.kind == KERNEL) & (kernels.dur_ns < SHORT_US * 1000) & (found.link >= 0)
    rows = np.flatnonzero(is_short)
    ops, text = found.trace.ops.take(found.link[rows]), found.trace.text
    keys = np.stack([ops.name_id, ops.dims_id, ops.strides_id, ops.concrete_id, kernels.name_id[rows]], 1)
    distinct, group = np.unique(keys, axis=0, return_inverse=True)
    stats = grouped(kernels.dur_ns[rows] / 1000, group.ravel(), len(distinct))
    readable = _Cached(lambda index: _as_tuple(text(np.array([index]))[0]))
    frame = pd.DataFrame(
        {
            "Parent cpu_op": text(distinct[:, 0]),
            "Input dims": [readable[i] for i in distinct[:, 1].tolist()],
            "Input strides": [readable[i] for i in distinct[:, 2].tolist()],
            "Concrete Inputs": [readable[i] for i in distinct[:, 3].tolist()],
            "Kernel name": text(distinct[:, 4]),
            "Short Kernel duration (µs) sum": stats["sum"],
            "Short Kernel count": stats["count"],
            "Short Kernel duration (µs) mean": stats["mean"],
            "Short Kernel duration (µs) percent of total time": _percent(stats["sum"], total_us),
        }
    )
    order = "Short Kernel duration (µs) sum"
    result: pd.DataFrame = frame.sort_values(order, ascending=False, kind="stable", ignore_index=True)
    return result


def kernel_details(found: Launches, group: np.ndarray, num_groups: int) -> dict[str, list[str]]:
    """Columns kernel_details_summary and trunc_kernel_details: each group's kernels with their statistics.

    group: 0..num_groups-1 or -1 for each row of `kernels` (n,).
    """
    rows = np.flatnonzero(group >= 0)
    kernels = found.trace.kernels.take(rows)
    keys = np.stack([group[rows], kernels.name_id, kernels.stream], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    stats = grouped(kernels.dur_ns / 1000, which.ravel(), len(distinct))
    names = found.trace.text(distinct[:, 1]).tolist()
    long: list[list[dict[str, Any]]] = [[] for _ in range(num_groups)]
    for at in np.argsort(-stats["sum"], kind="stable").tolist():
        long[int(distinct[at, 0])].append(
            {
                "name": names[at],
                "stream": int(distinct[at, 2]),
                "count": int(stats["count"][at]),
                "total_duration_us": float(stats["sum"][at]),
                "mean_duration_us": float(stats["mean"][at]),
                "median_duration_us": float(stats["median"][at]),
                "std_dev_duration_us": float(stats["std"][at]),
                "min_duration_us": float(stats["min"][at]),
                "max_duration_us": float(stats["max"][at]),
            }
        )
    return {
        "kernel_details_summary": [str(each) for each in long],
        "trunc_kernel_details": [str([_short(kernel) for kernel in each]) for each in long],
    }


def who(trace: Trace, pid: np.ndarray, tid: np.ndarray) -> dict[str, np.ndarray]:
    """Columns process_name, process_label, thread_name of each (pid, tid), as far as the recording tells."""
    names, labels = (
        dict(zip(trace.processes.pid.tolist(), trace.text(getattr(trace.processes, column)), strict=True))
        for column in ("name_id", "label_id")
    )
    threads = dict(
        zip(
            zip(trace.threads.pid.tolist(), trace.threads.tid.tolist(), strict=True),
            trace.text(trace.threads.name_id),
            strict=True,
        )
    )
    where = list(zip(pid.tolist(), tid.tolist(), strict=True))
    columns = [
        [names.get(process, "") for process, _ in where],
        [labels.get(process, "") for process, _ in where],
        [threads.get(one, "") for one in where],
    ]
    return {title: _objects(column) for title, column in zip(WHO, columns, strict=True)}


def op_arguments(trace: Trace, op_rows: np.ndarray) -> dict[str, list[str]]:
    """Columns Input Dims, Input type, Input Strides, Concrete Inputs of ops (n,), written as lists."""
    ops = trace.ops.take(op_rows)
    return {
        title: [str(_load(text)) if text else "" for text in trace.text(getattr(ops, name))]
        for title, name in ARGUMENTS.items()
    }


def _work(shape: pd.DataFrame, arguments: dict[str, list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """GFLOP (n,) and bytes moved (n,) of each shape; NaN where a size is unknown.

    2 B M N K operations and B M N more for a bias; bytes of A, B, C and the bias, all in A's dtype.
    """
    b, m, n, k = (shape[name].to_numpy(dtype=float) for name in ("B", "M", "N", "K"))
    known = np.where(m < 0, np.nan, 1.0)
    bias = [_bias_elements(op, dims) for op, dims in zip(shape["op"], arguments["Input Dims"], strict=True)]
    has_bias = shape["bias"].to_numpy(dtype=bool)
    gflops = b * m * n * (2 * k + has_bias) / 1e9
    elements = b * (m * k + k * n + m * n) + np.where(has_bias, bias, 0)
    return gflops * known, elements * _dtype_bytes(shape["dtype"]) * known


def _bias_elements(op: str, dims: str) -> float:
    """Elements of the bias, which is an argument before the factors, or the third one of linear."""
    items = ast.literal_eval(dims) if dims else []
    bias = (items + [None] * 3)[2 if op == "aten::linear" else 0]
    return (
        float(np.prod(bias)) if isinstance(bias, list) and all(isinstance(n, int) for n in bias) else np.nan
    )


def _dtype_bytes(dtypes: pd.Series) -> np.ndarray:
    return np.array([views.DTYPE_BYTES.get(dtype.lower(), np.nan) for dtype in dtypes], dtype=float)


def _factors(arguments: dict[str, list[str]], shape: pd.DataFrame) -> dict[str, list[str]]:
    """Columns stride_A, stride_B, dtype_A_B and transpose (of B and A, as a column-major BLAS sees them)."""
    columns: dict[str, list[str]] = {
        f"param: {name}": [] for name in ("stride_A", "stride_B", "dtype_A_B", "transpose")
    }
    rows = zip(
        shape["op"], shape["transpose"], arguments["Input Strides"], arguments["Input type"], strict=True
    )
    for op, letters, strides, types in rows:
        first = views.GEMM_OPS.get(op, 0)
        a, b = _two(strides, first)
        columns["param: stride_A"].append(str(_tuples(a)) if a else "")
        columns["param: stride_B"].append(str(_tuples(b)) if b else "")
        columns["param: dtype_A_B"].append(str(tuple(_two(types, first))))
        columns["param: transpose"].append(str(tuple(letter == "T" for letter in letters[::-1])))
    return columns


def _two(text: str, first: int) -> list[Any]:
    items = ast.literal_eval(text) if text else []
    return [*items[first : first + 2], None, None][:2]


def _gemm_details(found: Launches, gemm: Table, group: np.ndarray, num_groups: int) -> dict[str, list[str]]:
    of_op = np.full(len(found.trace.ops) + 1, -1, dtype=np.int64)
    of_op[gemm.op_row] = group
    details = kernel_details(found, of_op[found.link], num_groups)
    return {
        "kernel_details__summarize_kernel_stats": details["kernel_details_summary"],
        "trunc_kernel_details": details["trunc_kernel_details"],
    }


def _gemm_extras(gemm: Table, group: np.ndarray, stats: dict[str, np.ndarray]) -> dict[str, Any]:
    """Our columns: robust spread, the kernels' family, and the time with and without a collective beside."""
    n = len(stats["count"])
    frame = pd.DataFrame({"group": group, "kernels": gemm.kernels, "family": gemm.family})
    extras: dict[str, Any] = {
        "mad_us": stats["mad"],
        "cv": stats["std"] / stats["mean"],
        "p5_us": stats["p5"],
        "p95_us": stats["p95"],
        "family": frame.groupby("group")["family"].first().tolist(),
        "num_kernel_names": frame.groupby("group")["kernels"].nunique().tolist(),
    }
    for name, chosen in (("free", gemm.comm_ns == 0), ("overlapped", gemm.comm_ns > 0)):
        part = grouped(gemm.dur_ns[chosen] / 1000, group[chosen], n)
        extras |= {f"{name}_n": part["count"], f"{name}_median_us": part["median"]}
    return extras


def _objects(values: list[str]) -> np.ndarray:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


class _Cached(dict[int, str]):
    def __init__(self, compute: Callable[[int], str]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: int) -> str:
        self[key] = self._compute(key)
        return self[key]


def _ancestry(ops: Table, link: np.ndarray, launchers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (k,), (k,): index into launchers, row of `kernels`, for every launcher around or at each launch."""
    index_of = np.full(len(ops) + 1, -1, dtype=np.int64)
    index_of[launchers] = np.arange(len(launchers))
    parent = parents(ops)
    kernel = np.flatnonzero(link >= 0)
    op = link[kernel]
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    while len(op):
        launches_too = index_of[op] >= 0
        pairs.append((index_of[op[launches_too]], kernel[launches_too]))
        op = parent[op]
        kernel, op = kernel[op >= 0], op[op >= 0]
    if not pairs:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    return np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])


def parents(ops: Table) -> np.ndarray:
    """Row of the innermost op around each op on its own thread (n,), or -1."""
    order = np.lexsort((-ops.dur_ns, ops.ts_ns, ops.tid, ops.pid))
    pid, tid = ops.pid[order], ops.tid[order]
    edges = np.flatnonzero((np.diff(pid) != 0) | (np.diff(tid) != 0)) + 1
    parent = np.full(len(order), -1, dtype=np.int64)
    for rows in np.split(order, edges):
        above = enclosing(spans(ops.ts_ns[rows], ops.dur_ns[rows]))
        parent[rows] = np.where(above >= 0, rows[above], -1) if len(rows) else above
    return parent


def _kernel_categories(trace: Trace, link: np.ndarray) -> np.ndarray:
    """Category text of each kernel (n,), "" where its op is not known."""
    op_name = np.where(link >= 0, trace.ops.name_id[link] if len(trace.ops) else -1, -1)
    pairs, which = np.unique(np.stack([op_name, trace.kernels.name_id], 1), axis=0, return_inverse=True)
    texts = [
        families.category(op, kernel) if op else ""
        for op, kernel in zip(trace.text(pairs[:, 0]), trace.text(pairs[:, 1]), strict=True)
    ]
    return np.array(texts, dtype=object)[which.ravel()] if texts else np.empty(0, dtype=object)


def _ranked(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    frame = frame.sort_values(by, ascending=False, kind="stable", ignore_index=True)
    share = _percent(frame[by].to_numpy(dtype=float), float(frame[by].sum()))
    result: pd.DataFrame = frame.assign(**dict(zip(CUM, (share, np.cumsum(share)), strict=True)))
    return result


def _percent(part: np.ndarray, whole: float) -> np.ndarray:
    return 100 * part / whole if whole else np.full(len(part), np.nan)


def _short(kernel: dict[str, Any]) -> dict[str, Any]:
    name = kernel["name"] if len(kernel["name"]) <= 64 else kernel["name"][:64] + "..."
    mean_us = round(kernel["mean_duration_us"], 2)
    return {"name": name, "stream": kernel["stream"], "mean_duration_us": mean_us}


def _as_tuple(text: str) -> str:
    return str(_tuples(_load(text))) if text else ""


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _load(text: str) -> Any:
    value: Any = json.loads(text)
    return value
