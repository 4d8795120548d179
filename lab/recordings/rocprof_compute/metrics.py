"""Metrics of kernels, and the roof that they are under."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import BadDataError
from lab.recordings import sqlite
from lab.recordings.sqlite import Database, quoted

LEVELS = ("l1", "l2", "hbm")
_BANDWIDTHS = {"l1": "L1Bw", "l2": "L2Bw", "hbm": "HBMBw"}
# Of the description of the machine, only this: it also names host, user and command.
_MACHINE = ("gpu_model", "gpu_arch", "cu_per_gpu", "max_sclk", "rocm_version")


@dataclass(frozen=True)
class Metric:
    """What was measured: its number in the tool's reports (`2.1.22`), name, place in the report and unit."""

    metric_id: str
    name: str
    table: str
    sub_table: str
    unit: str


@dataclass(frozen=True)
class Value:
    """One number of one metric; name is `Avg`, `Peak`, `Pct of Peak` and the like; None: not measured."""

    metric: Metric
    name: str
    value: float | None


@dataclass(frozen=True)
class KernelMetrics:
    """One kernel; None where it was not measured.

    dur_ns sums its dispatches, as the counter passes ran them. gflop_per_s is its rate, intensity its FLOP
    per byte at each of LEVELS, values every metric's numbers in the file's order.
    """

    name: str
    workload: str
    dispatches: int
    dur_ns: int
    gflop_per_s: float | None
    intensity: dict[str, float]
    values: tuple[Value, ...]

    def value(self, metric: str, name: str = "Avg") -> float | None:
        """The first number of this name (the tool repeats some metrics in several tables)."""
        numbers = (number for number in self.values if number.metric.name == metric)
        return next((number.value for number in numbers if number.name == name), None)


@dataclass(frozen=True)
class Metrics:
    """One database. kernels: costliest first; peaks, of each workload: what a benchmark measured, in GB/s and
    GFLOP/s; machine: of each workload."""

    source: Path
    version: str | None
    schema: str | None
    kernels: tuple[KernelMetrics, ...]
    peaks: dict[str, dict[str, float]]
    machine: dict[str, dict[str, str]]
    problems: tuple[str, ...] = ()

    def roof_gflop_per_s(self, kernel: KernelMetrics, level: str = "hbm") -> float | None:
        """What `level` of memory allows a kernel of this intensity: FLOP per byte times the measured GB/s."""
        peak = self.peaks.get(kernel.workload, {}).get(_BANDWIDTHS[level])
        intensity = kernel.intensity.get(level)
        return peak * intensity if peak and intensity else None

    def rows(self) -> list[dict[str, Any]]:
        """One row per kernel, costliest first, for a table; None where nothing was measured."""
        sum_ns = sum(kernel.dur_ns for kernel in self.kernels)
        return [self._row(kernel, sum_ns) for kernel in self.kernels]

    def value_rows(self) -> list[dict[str, Any]]:
        """One row per number of every metric of every kernel."""
        return [
            {"kernel": kernel.name, "workload": kernel.workload, **vars(number.metric)}
            | {"value_name": number.name, "value": number.value}
            for kernel in self.kernels
            for number in kernel.values
        ]

    def _row(self, kernel: KernelMetrics, sum_ns: int) -> dict[str, Any]:
        hbm = kernel.value("HBM Bandwidth", "Value")
        peak = self.peaks.get(kernel.workload, {}).get("HBMBw")
        rate, roof = kernel.gflop_per_s, self.roof_gflop_per_s(kernel)
        return {
            "kernel": kernel.name,
            "workload": kernel.workload,
            "dispatches": kernel.dispatches,
            "dur_us": kernel.dur_ns / 1000,
            "time_share": kernel.dur_ns / sum_ns if sum_ns else None,
            "gflop_per_s": rate,
            "flop_per_byte_hbm": kernel.intensity.get("hbm"),
            "roof_hbm_gflop_per_s": roof,
            "of_roof": rate / roof if roof and rate is not None else None,
            "hbm_gb_per_s": hbm,
            "hbm_of_peak": hbm / peak if hbm is not None and peak else None,
            "valu_percent": kernel.value("VALU Utilization"),
            "mfma_percent": kernel.value("MFMA Utilization"),
            "l2_hit_percent": kernel.value("L2 Cache Hit Rate"),
            "occupancy_percent": kernel.value("Wavefront Occupancy", "Pct of Peak"),
        }


def load_metrics(path: Path | str) -> Metrics:
    """Read one database, plain or gzip.

    Raises MissingError without the file; BadDataError if it is truncated, damaged, of another kind, or holds
    values of wrong types.
    """
    path = Path(path)
    with ExitStack() as stack:
        plain = stack.enter_context(sqlite.unzipped(path)) if sqlite.is_gzip(path) else path
        database = Database(stack.enter_context(sqlite.opened(plain)), plain)
        return _read(database, path)


def _read(database: Database, path: Path) -> Metrics:
    if not {"compute_dispatch", "compute_kernel"} <= database.columns.keys():
        raise BadDataError("not an analysis database of rocprof-compute", location=database.path)
    kernels = database.integers("compute_kernel", {"id": "kernel_uuid"}, {"workload": "workload_id"})
    names = database.texts("compute_kernel", "kernel_uuid", "kernel_name")
    workloads = _workload_names(database)
    times = database.integers(
        "compute_dispatch", {"kernel": "kernel_uuid", "start": "start_timestamp", "end": "end_timestamp"}
    )
    values = _values(database)
    roofs = _numbers(database, "compute_kernel_roofline_data", "kernel_uuid")
    problems = []
    strangers = int((~np.isin(times["kernel"], kernels["id"])).sum())
    if strangers:
        problems.append(f"{strangers:,} dispatches of kernels that the file does not describe are left out")
    dur_ns = np.maximum(times["end"] - times["start"], 0)
    rows = []
    for kernel, workload in zip(kernels["id"].tolist(), kernels["workload"].tolist(), strict=True):
        of_kernel, roof = times["kernel"] == kernel, roofs.get(kernel, {})
        levels = {level: f"{level}_cache_data" for level in LEVELS}
        rows.append(
            KernelMetrics(
                name=names.get(kernel, f"kernel {kernel}"),
                workload=workloads.get(workload, str(workload)),
                dispatches=int(of_kernel.sum()),
                dur_ns=int(dur_ns[of_kernel].sum()),
                gflop_per_s=roof.get("total_flops"),
                intensity={level: roof[column] for level, column in levels.items() if column in roof},
                values=tuple(values.get(kernel, ())),
            )
        )
    machines = _objects(database, "sys_info_extdata", workloads)
    return Metrics(
        source=path,
        version=_cell(database, "compute_metadata", "compute_version"),
        schema=_cell(database, "compute_metadata", "schema_version"),
        kernels=tuple(sorted(rows, key=lambda kernel: -kernel.dur_ns)),
        peaks={
            name: _finite_of(peaks)
            for name, peaks in _objects(database, "roofline_bench_extdata", workloads).items()
        },
        machine={
            name: {key: str(machine[key])[:64] for key in _MACHINE if key in machine}
            for name, machine in machines.items()
        },
        problems=tuple(problems),
    )


def _workload_names(database: Database) -> dict[int, str]:
    names, sub_names = (
        database.texts("compute_workload", "workload_id", column) for column in ("name", "sub_name")
    )
    return {key: " ".join(filter(None, (name, sub_names.get(key)))) for key, name in names.items()}


def _values(database: Database) -> dict[int, list[Value]]:
    """Every number by kernel; one of an unknown metric keeps its number as name."""
    metrics = _metrics(database)
    table = "compute_kernel_metric_value"
    values: dict[int, list[Value]] = defaultdict(list)
    if not {"value", "value_name", "metric_uuid", "kernel_uuid"} <= database.columns.get(table, frozenset()):
        return values
    rows = database.connection.execute(
        f"SELECT kernel_uuid, metric_uuid, SUBSTR(value_name, 1, 200), value FROM {table} ORDER BY rowid"
    )
    for kernel, metric, name, value in rows:
        unknown = Metric("", f"metric {str(metric)[:20]}", "", "", "")
        values[kernel].append(Value(metrics.get(metric, unknown), str(name), _finite(value)))
    return values


def _metrics(database: Database) -> dict[int, Metric]:
    table = "compute_metric_definition"
    columns = ("metric_id", "name", "table_name", "sub_table_name", "unit")
    texts = [database.texts(table, "metric_uuid", column) for column in columns]
    return {key: Metric(*(text.get(key, "") for text in texts)) for key in set().union(*texts)}


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _finite_of(values: Mapping[str, object]) -> dict[str, float]:
    return {name: number for name, value in values.items() if (number := _finite(value)) is not None}


def _numbers(database: Database, table: str, key: str) -> dict[int, dict[str, float]]:
    """The real columns of a table by its integer key."""
    columns = sorted(database.columns.get(table, frozenset()) - {key, "roofline_uuid"})
    if key not in database.columns.get(table, frozenset()) or not columns:
        return {}
    chosen = ", ".join(map(quoted, columns))
    rows = database.connection.execute(
        f"SELECT {quoted(key)}, {chosen} FROM {quoted(table)} WHERE typeof({quoted(key)}) = 'integer'"
    )
    return {row[0]: _finite_of(dict(zip(columns, row[1:], strict=True))) for row in rows}


def _objects(database: Database, column: str, workloads: dict[int, str]) -> dict[str, dict[str, Any]]:
    """The JSON objects in a column of the workloads, by the name of the workload."""
    objects = {}
    for key, text in database.texts("compute_workload", "workload_id", column).items():
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            objects[workloads.get(key, str(key))] = value
    return objects


def _cell(database: Database, table: str, column: str) -> str | None:
    """A text of the first row."""
    if column not in database.columns.get(table, frozenset()):
        return None
    row = database.connection.execute(
        f"SELECT SUBSTR({quoted(column)}, 1, 64) FROM {quoted(table)} LIMIT 1"
    ).fetchone()
    return str(row[0]) if row and row[0] is not None else None
