"""Metrics of kernels, and the roof that they are under."""

from __future__ import annotations

import json
import math
from collections import defaultdict
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
        return next(
            (one.value for one in self.values if one.metric.name == metric and one.name == name), None
        )


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
        whole_ns = sum(one.dur_ns for one in self.kernels)
        return [self._row(one, whole_ns) for one in self.kernels]

    def value_rows(self) -> list[dict[str, Any]]:
        """One row per number of every metric of every kernel."""
        return [
            {"kernel": kernel.name, "workload": kernel.workload, **vars(one.metric), "value_name": one.name}
            | {"value": one.value}
            for kernel in self.kernels
            for one in kernel.values
        ]

    def _row(self, one: KernelMetrics, whole_ns: int) -> dict[str, Any]:
        hbm = one.value("HBM Bandwidth", "Value")
        peak = self.peaks.get(one.workload, {}).get("HBMBw")
        roof = self.roof_gflop_per_s(one)
        return {
            "kernel": one.name,
            "workload": one.workload,
            "dispatches": one.dispatches,
            "dur_us": one.dur_ns / 1000,
            "time_share": one.dur_ns / whole_ns if whole_ns else None,
            "gflop_per_s": one.gflop_per_s,
            "flop_per_byte_hbm": one.intensity.get("hbm"),
            "roof_hbm_gflop_per_s": roof,
            "of_roof": one.gflop_per_s / roof if roof and one.gflop_per_s is not None else None,
            "hbm_gb_per_s": hbm,
            "hbm_of_peak": hbm / peak if hbm is not None and peak else None,
            "valu_percent": one.value("VALU Utilization"),
            "mfma_percent": one.value("MFMA Utilization"),
            "l2_hit_percent": one.value("L2 Cache Hit Rate"),
            "occupancy_percent": one.value("Wavefront Occupancy", "Pct of Peak"),
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
    found = []
    for kernel, workload in zip(kernels["id"].tolist(), kernels["workload"].tolist(), strict=True):
        mine, roof = times["kernel"] == kernel, roofs.get(kernel, {})
        found.append(
            KernelMetrics(
                name=names.get(kernel, f"kernel {kernel}"),
                workload=workloads.get(workload, str(workload)),
                dispatches=int(mine.sum()),
                dur_ns=int(dur_ns[mine].sum()),
                gflop_per_s=roof.get("total_flops"),
                intensity={
                    level: roof[f"{level}_cache_data"] for level in LEVELS if f"{level}_cache_data" in roof
                },
                values=tuple(values.get(kernel, ())),
            )
        )
    version = _first(database, "compute_metadata", "compute_version")
    return Metrics(
        source=path,
        version=version,
        schema=_first(database, "compute_metadata", "schema_version"),
        kernels=tuple(sorted(found, key=lambda one: -one.dur_ns)),
        peaks=_peaks(database, workloads),
        machine=_machines(database, workloads),
        problems=tuple(problems),
    )


def _workload_names(database: Database) -> dict[int, str]:
    first = database.texts("compute_workload", "workload_id", "name")
    second = database.texts("compute_workload", "workload_id", "sub_name")
    return {one: " ".join(filter(None, (name, second.get(one)))) for one, name in first.items()}


def _values(database: Database) -> dict[int, list[Value]]:
    """Every number by kernel; one of an unknown metric keeps its number as name."""
    metrics = _metrics(database)
    table = "compute_kernel_metric_value"
    found: dict[int, list[Value]] = defaultdict(list)
    if not {"value", "value_name", "metric_uuid", "kernel_uuid"} <= database.columns.get(table, frozenset()):
        return found
    rows = database.connection.execute(
        f"SELECT kernel_uuid, metric_uuid, SUBSTR(value_name, 1, 200), value FROM {table} ORDER BY rowid"
    )
    for kernel, metric, name, value in rows:
        known = metrics.get(metric) or Metric("", f"metric {str(metric)[:20]}", "", "", "")
        found[kernel].append(Value(known, str(name), _finite(value)))
    return found


def _metrics(database: Database) -> dict[int, Metric]:
    table = "compute_metric_definition"
    columns = ("metric_id", "name", "table_name", "sub_table_name", "unit")
    texts = [database.texts(table, "metric_uuid", column) for column in columns]
    return {one: Metric(*(text.get(one, "") for text in texts)) for one in set().union(*texts)}


def _finite(value: object) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None  # type: ignore[arg-type]


def _numbers(database: Database, table: str, key: str) -> dict[int, dict[str, float]]:
    """The real columns of a table by its integer key."""
    columns = sorted(database.columns.get(table, frozenset()) - {key, "roofline_uuid"})
    if key not in database.columns.get(table, frozenset()) or not columns:
        return {}
    chosen = ", ".join(map(quoted, columns))
    rows = database.connection.execute(
        f"SELECT {quoted(key)}, {chosen} FROM {quoted(table)} WHERE typeof({quoted(key)}) = 'integer'"
    )
    return {
        row[0]: {
            name: number
            for name, value in zip(columns, row[1:], strict=True)
            if (number := _finite(value)) is not None
        }
        for row in rows
    }


def _peaks(database: Database, workloads: dict[int, str]) -> dict[str, dict[str, float]]:
    return {
        workloads.get(one, str(one)): {
            name: number for name, value in found.items() if (number := _finite(value)) is not None
        }
        for one, found in _objects(database, "roofline_bench_extdata").items()
    }


def _machines(database: Database, workloads: dict[int, str]) -> dict[str, dict[str, str]]:
    return {
        workloads.get(one, str(one)): {name: str(found[name])[:64] for name in _MACHINE if name in found}
        for one, found in _objects(database, "sys_info_extdata").items()
    }


def _objects(database: Database, column: str) -> dict[int, dict[str, Any]]:
    found = {}
    for one, text in database.texts("compute_workload", "workload_id", column).items():
        try:
            decoded = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(decoded, dict):
            found[one] = decoded
    return found


def _first(database: Database, table: str, column: str) -> str | None:
    if column not in database.columns.get(table, frozenset()):
        return None
    row = database.connection.execute(
        f"SELECT SUBSTR({quoted(column)}, 1, 64) FROM {quoted(table)} LIMIT 1"
    ).fetchone()
    return str(row[0]) if row and row[0] is not None else None
