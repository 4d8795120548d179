"""Which op launched which kernel, and how long the kernels of each op took."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lab.perfmodel.calls import OpCall, nested_tuple
from lab.perfmodel.dtypes import item_bytes
from lab.perfmodel.products import is_product
from lab.recordings import views
from lab.recordings.capture import Capture
from lab.recordings.tables import Table
from lab.stats.columns import column, grouped_rows, objects
from lab.stats.intervals import spans, totals

_CATEGORIES = [
    ("SDPA_bwd", re.compile(r"^aten::_scaled_dot_product.*_backward$")),
    # TraceLens recognises attention by these ops only; what they launch through other ops is `other`.
    ("SDPA_fwd", re.compile(r"^aten::_scaled_dot_product")),
    ("CONV_bwd", re.compile(r"convolution.*backward")),
    ("CONV_fwd", re.compile(r"^aten::(\w*_)?conv")),
    ("NORM_bwd", re.compile(r"(batch|layer|group|rms)_?norm.*backward")),
    ("NORM_fwd", re.compile(r"^aten::\w*(batch|layer|group|rms)_?norm")),
    ("record_param_comms", re.compile(r"^record_param_comms$")),
]
_KERNEL_CATEGORIES = [
    ("triton", re.compile(r"^triton")),
    ("multi_tensor_apply", re.compile(r"multi_tensor_apply")),
    ("reduce", re.compile(r"at::native::reduce_kernel")),
    ("elementwise", re.compile(r"elementwise_kernel(?!_with_index)")),
]
CUM = ["Percentage (%)", "Cumulative Percentage (%)"]
S5 = ("mean", "median", "std", "min", "max")
ARGUMENTS = {
    "Input Dims": "dims_id",
    "Input type": "types_id",
    "Input Strides": "strides_id",
    "Concrete Inputs": "concrete_id",
}


@dataclass(frozen=True)
class Launches:
    """The link between ops and kernels, computed once for all sheets.

    link: row of `ops` of each kernel (n,), or -1. launchers: rows of the ops that launched kernels (m,).
    launcher: index into launchers of each kernel (n,), or -1. direct_us, subtree_us: unions of an op's own
    kernels, and of those of the ops inside it too (m,). category (m,) and kernel_category (n,) are texts.
    """

    trace: Capture
    link: np.ndarray
    launchers: np.ndarray
    launcher: np.ndarray
    direct_us: np.ndarray
    subtree_us: np.ndarray
    category: np.ndarray
    kernel_category: np.ndarray

    @property
    def ops(self) -> Table:
        return self.trace.operators.take(self.launchers)

    def calls(self, op_rows: np.ndarray) -> list[OpCall]:
        """The calls of the ops at these rows (n,), with the arguments that were recorded."""
        ops, text = self.trace.operators.take(op_rows), self.trace.text
        texts = (text(getattr(ops, name)) for name in ("name_id", *ARGUMENTS.values()))
        return [OpCall.from_profiler(*call) for call in zip(*texts, strict=True)]


def launches(trace: Capture) -> Launches:
    """Link the kernels of a trace to its ops and add up their time."""
    link = views.link_ops(trace)
    linked = np.flatnonzero(link >= 0)
    launchers, index = np.unique(link[linked], return_inverse=True)
    launcher = np.full(len(link), -1, dtype=np.int64)
    launcher[linked] = index
    op_spans = spans(trace.ops.start_ns, trace.ops.dur_ns)
    op, kernel = _ancestry(trace, link, launchers)
    of_kernel = _kernel_categories(trace, link)
    # The first kernel of an op names its category where the op's own name does not.
    first_kernels = linked[np.lexsort((trace.ops.start_ns[linked], index))]
    first_kernels = first_kernels[np.unique(launcher[first_kernels], return_index=True)[1]]
    return Launches(
        trace=trace,
        link=link,
        launchers=launchers,
        launcher=launcher,
        direct_us=totals(op_spans[linked], index, len(launchers)) / 1000,
        subtree_us=totals(op_spans[kernel], op, len(launchers)) / 1000,
        category=of_kernel[first_kernels],
        kernel_category=of_kernel,
    )


def _ancestry(trace: Capture, link: np.ndarray, launchers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (k,), (k,): index into launchers, row of `kernels`, for all launchers around or at a launch."""
    index_of = np.full(len(trace.operators) + 1, -1, dtype=np.int64)
    index_of[launchers] = np.arange(len(launchers))
    parent = views.op_parents(trace)
    kernel = np.flatnonzero(link >= 0)
    op = link[kernel]
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    # All kernels climb one op per round, so there are as many rounds as ops are nested deep.
    while len(op):
        launches_too = index_of[op] >= 0
        pairs.append((index_of[op[launches_too]], kernel[launches_too]))
        op = parent[op]
        kernel, op = kernel[op >= 0], op[op >= 0]
    if not pairs:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    return np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])


def _kernel_categories(trace: Capture, link: np.ndarray) -> np.ndarray:
    """Category text of each kernel (n,), "" where its op is not known."""
    ids = of_op(trace, "name_id", link), trace.ops.name_id
    first_rows, group = grouped_rows(ids)
    names = zip(*(trace.text(name_ids[first_rows]) for name_ids in ids), strict=True)
    categories: np.ndarray = objects([category(op, kernel) if op else "" for op, kernel in names])[group]
    return categories


def of_op(trace: Capture, column: str, op_rows: np.ndarray) -> np.ndarray:
    """A column of the ops at these rows (n,), -1 where the row is -1."""
    values: np.ndarray = np.append(getattr(trace.operators, column), -1)[op_rows]
    return values


@lru_cache(maxsize=65536)  # a trace names a few hundred kernels, thousands of times
def category(op: str, kernel: str) -> str:
    """The report's category of an op by its name, else by the first kernel that it launched."""
    if is_product(op):
        return "GEMM"
    for name, pattern in _CATEGORIES:
        if pattern.search(op):
            return name
    return next((name for name, pattern in _KERNEL_CATEGORIES if pattern.search(kernel)), "other")


def sheet(columns: Mapping[str, Any]) -> Table:
    """A sheet from arrays and lists (n,); a single value stands in every row."""
    n = next((len(values) for values in columns.values() if _is_column(values)), 0)
    return Table(
        {
            name: column(values) if _is_column(values) else np.repeat(column([values]), n)
            for name, values in columns.items()
        }
    )


def _is_column(values: object) -> bool:
    return isinstance(values, (np.ndarray, list))


def most_first(table: Table, by: str) -> Table:
    """The rows in descending order of a column; those without a value last."""
    return table.take(np.argsort(-getattr(table, by), kind="stable"))


def ranked(table: Table, by: str) -> Table:
    """Most first, with each row's share of the column's sum and the shares added up."""
    table = most_first(table, by)
    values = getattr(table, by).astype(float)
    share = percent(values, float(np.nansum(values)))
    return Table({**table.as_dict(), **dict(zip(CUM, (share, np.cumsum(share)), strict=True))})


def percent(part: np.ndarray, total: float) -> np.ndarray:
    return 100 * part / total if total else np.full(len(part), np.nan)


def dtype_bytes(dtypes: np.ndarray) -> np.ndarray:
    return np.array([item_bytes(str(dtype)) or np.nan for dtype in dtypes], dtype=float)


def op_arguments(trace: Capture, op_rows: np.ndarray) -> dict[str, list[str]]:
    """Columns Input Dims, Input type, Input Strides, Concrete Inputs of ops (n,), written as lists."""
    ops = trace.operators.take(op_rows)
    return {
        f"{title}_first": [str(json.loads(text)) if text else "" for text in trace.text(getattr(ops, name))]
        for title, name in ARGUMENTS.items()
    }


def as_tuples(trace: Capture, ids: np.ndarray) -> np.ndarray:
    """Arguments (n,) by the ids of their texts, written as tuples."""
    return objects([_as_tuple(text) for text in trace.text(ids)])


@lru_cache(maxsize=1 << 14)  # several sheets show the same arguments
def _as_tuple(text: str) -> str:
    return str(nested_tuple(json.loads(text))) if text else ""


def who(trace: Capture, ops: Table, suffix: str = "") -> dict[str, list[str]]:
    """Columns process_name, process_label, thread_name of each op; "" where not recorded."""
    processes, threads = trace.process_names, trace.thread_names
    names, labels = (
        dict(zip(processes.pid.tolist(), trace.text(getattr(processes, column)), strict=True))
        for column in ("name_id", "label_id")
    )
    thread_keys = zip(threads.pid.tolist(), threads.tid.tolist(), strict=True)
    thread_names = dict(zip(thread_keys, trace.text(threads.name_id), strict=True))
    pids = ops.pid.tolist()
    return {
        f"process_name{suffix}": [names.get(pid, "") for pid in pids],
        f"process_label{suffix}": [labels.get(pid, "") for pid in pids],
        f"thread_name{suffix}": [
            thread_names.get(key, "") for key in zip(pids, ops.tid.tolist(), strict=True)
        ],
    }
