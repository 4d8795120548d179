"""Hardware counters of a recording: per process, kernel and counter over the dispatches that measured it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from lab.recordings.tables import Table, concat

# kernel, counter and unit are string ids (-1: not recorded); measured counts dispatches.
COUNTER_COLUMNS = {
    "process": np.int32,
    "name_id": np.int32,
    "counter_id": np.int32,
    "unit_id": np.int32,
    "measured": np.int64,
    "sum": np.float64,
    "min": np.float64,
    "max": np.float64,
}


@dataclass
class Total:
    """What the dispatches of one kernel measured of one counter."""

    measured: int = 0
    sum: float = 0.0
    min: float = np.inf
    max: float = -np.inf

    def add(self, value: float) -> None:
        self.measured += 1
        self.sum += value
        self.min, self.max = min(self.min, value), max(self.max, value)

    def with_(self, total: Total) -> Total:
        """Both together."""
        low, high = min(self.min, total.min), max(self.max, total.max)
        return Total(self.measured + total.measured, self.sum + total.sum, low, high)


def no_counters() -> Table:
    return concat([], COUNTER_COLUMNS)


def totals_table(process: int, totals: Mapping[tuple[int, int, int], Total]) -> Table:
    """The table of one process, by (name_id, counter_id, unit_id)."""
    keys = np.array(list(totals), dtype=np.int64).reshape(-1, 3)
    columns = dict(zip(("name_id", "counter_id", "unit_id"), keys.T, strict=True))
    columns |= {"process": np.full(len(keys), process)}
    for name in ("measured", "sum", "min", "max"):
        columns[name] = np.array([getattr(one, name) for one in totals.values()])
    return Table({name: np.asarray(columns[name], dtype=kind) for name, kind in COUNTER_COLUMNS.items()})


def counter_table(keys: np.ndarray, dispatches: np.ndarray, values: np.ndarray) -> Table:
    """The table of `values` (n,), one per dispatch, counter and instance of its hardware block.

    keys (n, 4) are process, name_id, counter_id and unit_id; dispatches (n,) tell dispatches apart, of which
    each has the sum of its instances.
    """
    rows = np.column_stack([keys, dispatches])
    used, position = np.unique(rows, axis=0, return_inverse=True)
    per_dispatch = np.bincount(position.reshape(-1), values, minlength=len(used))
    groups, group = np.unique(used[:, :4], axis=0, return_inverse=True)
    group = group.reshape(-1)
    low, high = np.full(len(groups), np.inf), np.full(len(groups), -np.inf)
    np.minimum.at(low, group, per_dispatch)
    np.maximum.at(high, group, per_dispatch)
    columns = dict(zip(("process", "name_id", "counter_id", "unit_id"), groups.T, strict=True)) | {
        "measured": np.bincount(group, minlength=len(groups)),
        "sum": np.bincount(group, per_dispatch, minlength=len(groups)),
        "min": low,
        "max": high,
    }
    return Table({name: np.asarray(columns[name], dtype=kind) for name, kind in COUNTER_COLUMNS.items()})


def sum_by_counter(records: Iterable[tuple[int, float]]) -> dict[int, float]:
    """The sum of the instances of each counter of one dispatch."""
    sums: dict[int, float] = {}
    for counter, value in records:
        sums[counter] = sums.get(counter, 0.0) + value
    return sums


@dataclass(frozen=True)
class DeviceEvents:
    """What nsys alone records beside operations: sampled GPU metrics, and page faults of unified memory.

    samples: (GPU, metric) -> times (n,) in ns and percent of the peak (n,), by time; metrics are sm_active,
    tensor_active, dram_read and dram_write.
    gpus: (pid, CUDA device) -> GPU; {} where the recording does not say which GPU a device is.
    faults: `cpu`, `gpu` -> columns pid, start_ns and pages, each (m,); a side without a table is absent.
    """

    samples: Mapping[tuple[int, str], tuple[np.ndarray, np.ndarray]]
    gpus: Mapping[tuple[int, int], int]
    faults: Mapping[str, Mapping[str, np.ndarray]]
