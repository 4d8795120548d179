"""What several sheets share: a sheet from columns, its order, arguments of ops, and where an op ran."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from lab.perfmodel.calls import nested_tuple
from lab.perfmodel.dtypes import item_bytes
from lab.recordings.capture import Capture
from lab.recordings.tables import Table
from lab.stats.columns import column, objects

CUM = ["Percentage (%)", "Cumulative Percentage (%)"]
S5 = ("mean", "median", "std", "min", "max")
ARGUMENTS = {
    "Input Dims": "dims_id",
    "Input type": "types_id",
    "Input Strides": "strides_id",
    "Concrete Inputs": "concrete_id",
}


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
