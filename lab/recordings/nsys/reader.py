"""Reader of a .nsys-rep, or its export to SQLite or a folder of Parquet files, into a capture."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.words import plural
from lab.errors import BadDataError, MissingError, StorageError, needs
from lab.recordings.capture import Capture, DeviceEvents, Process, by_process
from lab.recordings.nsys.export import (
    PARQUET,
    Export,
    StringIds,
    check_presence,
    host_pid_of,
    pid_of,
    read_devices,
    read_info,
    stated_lacks,
    untraced_lacks,
)
from lab.recordings.nsys.operations import (
    never_closed,
    read_api_calls,
    read_graph_nodes,
    read_operations,
    read_os_calls,
    read_ranges,
    read_waits,
    with_bare_names,
)
from lab.recordings.sqlite import opened, quoted
from lab.recordings.tables import Table

# Metric -> its name in TARGET_INFO_GPU_METRICS, with the unit that makes it a share of the peak.
METRICS = {
    "sm_active": "SMs Active [Throughput %]",
    "tensor_active": "Tensor Active [Throughput %]",
    "dram_read": "DRAM Read Bandwidth [Throughput %]",
    "dram_write": "DRAM Write Bandwidth [Throughput %]",
}
_FAULTS = {"cpu": "CUDA_UM_CPU_PAGE_FAULT_EVENTS", "gpu": "CUDA_UM_GPU_PAGE_FAULT_EVENTS"}
_SAMPLED = {"time_ns": "timestamp", "type": "typeId", "metric": "metricId", "percent": "value"}


def read_device_events(export: Export) -> DeviceEvents | None:
    """Read samples and faults; None where the export has neither, or in unknown columns (noted)."""
    try:
        samples = _samples(export)
        faults = {name: _faults(export, table) for name, table in _FAULTS.items() if table in export.tables}
    except BadDataError as error:
        export.problems.append(f"GPU metrics and page faults are unknown: {error.problem}")
        return None
    return DeviceEvents(samples, _gpus(export), faults) if samples or faults else None


def _samples(export: Export) -> dict[tuple[int, str], tuple[np.ndarray, np.ndarray]]:
    names = {"metricId", "metricName"}
    if "GPU_METRICS" not in export.tables or not names <= export.tables.get("TARGET_INFO_GPU_METRICS", set()):
        return {}
    metric_of = {text: metric for metric, text in METRICS.items()}
    described = export.rows("TARGET_INFO_GPU_METRICS", ("metricId", "metricName"))
    metrics = {int(number): metric_of[text] for number, text in described if text in metric_of}
    rows = export.numbers("GPU_METRICS", _SAMPLED, None, ("metricId", tuple(metrics)))
    valid = (rows["percent"] >= 0) & (rows["percent"] <= 100)
    if invalid := int((~valid).sum()):
        export.problems.append(f"GPU_METRICS: {plural(invalid, 'sample')} outside 0 to 100 %, left out")
    rows = {name: values[valid] for name, values in rows.items()}
    order = np.argsort(rows["time_ns"], kind="stable")
    rows = {name: values[order] for name, values in rows.items()}
    # The lowest byte of typeId is the sampler's number of the GPU.
    gpus = rows["type"] & 0xFF
    samples = {}
    for gpu in np.unique(gpus).tolist():
        for number, metric in metrics.items():
            chosen = (gpus == gpu) & (rows["metric"] == number)
            if chosen.any():
                samples[gpu, metric] = rows["time_ns"][chosen], rows["percent"][chosen]
    return samples


def _gpus(export: Export) -> dict[tuple[int, int], int]:
    """Map (pid, CUDA device) to the number of the GPU in the sampler."""
    gpu_columns, device_columns = ("id", "pwGpuId"), ("pid", "cudaId", "gpuId")
    if not set(gpu_columns) <= export.tables.get("TARGET_INFO_GPU", set()):
        return {}
    if not set(device_columns) <= export.tables.get("TARGET_INFO_CUDA_DEVICE", set()):
        return {}
    sampler_of: dict[int, int] = dict(export.rows("TARGET_INFO_GPU", gpu_columns))
    devices = export.rows("TARGET_INFO_CUDA_DEVICE", device_columns)
    return {(pid, device): sampler_of[gpu] for pid, device, gpu in devices if gpu in sampler_of}


def _faults(export: Export, table: str) -> dict[str, np.ndarray]:
    optional = {"global_pid": "globalPid", "pages": "numberOfPageFaults"}
    rows = export.numbers(table, {"start_ns": "start"}, optional)
    pid = pid_of(host_pid_of(rows["global_pid"]))
    return {"pid": pid, "start_ns": rows["start_ns"], "pages": np.maximum(rows["pages"], 1)}


REPORT_SUFFIXES = (".nsys-rep", ".qdrep")


def load(path: Path | str) -> Capture:
    """Read an export.

    Raises MissingError without the file; BadDataError if it is empty, not SQLite, truncated, damaged, not an
    nsys export, or of a schema with unknown columns.
    """
    path = Path(path)
    with opened(path) as connection:
        return capture_of(Export(connection, path))


def capture_of(export: Export) -> Capture:
    """The capture in an export."""
    export.check()
    lacks = stated_lacks(export)
    strings = StringIds(export)
    read = [
        read_operations(export, strings),
        read_api_calls(export, strings),
        read_ranges(export, strings),
        read_waits(export),
        read_os_calls(export, strings),
        read_graph_nodes(export),
    ]
    (ops, api, ranges, sync, osrt, nodes), processes = _by_process(read)
    meta = export.pairs("META_DATA_EXPORT")
    capture = Capture(
        source=export.path,
        collector="nsys",
        version=meta.get("EXPORT_PRODUCT_VERSION"),
        schema=meta.get("EXPORT_SCHEMA_VERSION"),
        ops=ops,
        api=api,
        ranges=with_bare_names(ranges, strings),
        sync=sync,
        osrt=osrt,
        nodes=nodes,
        strings=strings.texts,
        devices=read_devices(export),
        problems=export.problems,
        info=read_info(export),
        processes=processes,
        lacks=lacks + never_closed(ranges, strings.texts) + untraced_lacks(export, strings.texts),
        device_events=read_device_events(export),
    )
    check_presence(capture)
    return capture


def _by_process(tables: Sequence[Table]) -> tuple[list[Table], tuple[Process, ...]]:
    """The tables and processes with plain pids, told apart by machine and pid."""
    keyed, processes = by_process(tables)
    plain = [Table({**table.as_dict(), "pid": pid_of(table.pid)}) for table in keyed]
    hosts = {process.pid >> 24 for process in processes if process.pid is not None}
    return plain, tuple(
        process
        if process.pid is None
        else replace(
            process,
            pid=process.pid & 0xFFFFFF,
            host=f"machine {process.pid >> 24:x}" if len(hosts) > 1 else None,
        )
        for process in processes
    )


def load_report(path: Path | str) -> Capture:
    """Read a .nsys-rep through `nsys export`; the exported file, with its secrets, is deleted at once.

    Raises MissingError where nsys is not on PATH; BadDataError where the export fails.
    """
    path = Path(path)
    nsys = shutil.which("nsys")
    if nsys is None:
        raise MissingError(
            "only nsys can read a .nsys-rep, and nsys is not on PATH",
            location=path,
            fix="on a machine with nsys: nsys export --type sqlite FILE.nsys-rep; give lab the .sqlite file",
        )
    with tempfile.TemporaryDirectory(prefix="lab-nsys-") as folder:
        target = Path(folder) / "export.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(target)]
        run = subprocess.run([*command, str(path.absolute())], capture_output=True, text=True, check=False)
        if run.returncode or not target.exists():
            output = (run.stderr or run.stdout).strip().splitlines()
            raise BadDataError(
                f"nsys export failed ({run.returncode}): {output[-1] if output else 'no output'}",
                location=path,
            )
        capture = load(target)
    return replace(capture, source=path)


# What lab reads. Of other tables, which may be much larger (SCHED_EVENTS), only the columns are copied.
_READ = re.compile(
    r"CUPTI_|CUDA_|TARGET_INFO_|META_DATA_|(NVTX_EVENTS|OSRT_API|GPU_METRICS|DIAGNOSTIC_EVENT|StringIds)$"
)
_NO_ROOM = ("disk is full", "disk I/O error", "unable to open database file")  # Python 3.10 has no codes
# Nothing marks an export as finished, but a finished one has both.
_NEEDED = ("META_DATA_EXPORT", "StringIds")
MOST_ROWS = 1 << 28  # of one table: a small file can promise any number of equal rows
_BATCH_ROWS = 1 << 14
_FIX = "nsys export --type parquetdir --force-overwrite true FILE.nsys-rep"


def load_folder(path: Path | str) -> Capture:
    """Read an export of `--type parquetdir` through a temporary database, which holds the same tables.

    Raises BadDataError where the export was not finished, or a table is truncated, damaged or of unknown
    columns.
    """
    path = Path(path)
    files = sorted(path.glob(f"*{PARQUET}"))
    tables = [file.name.removesuffix(PARQUET) for file in files]
    if missing := [name for name in _NEEDED if name not in tables]:
        raise BadDataError(
            f"an unfinished export: {' and '.join(missing)} missing from the folder",
            location=path,
            fix=_FIX,
        )
    with closing(sqlite3.connect("")) as connection:  # "": a temporary file, deleted when it is closed
        try:
            for file, table in zip(files, tables, strict=True):
                _copy(connection, file, table)
        except sqlite3.Error as error:
            if any(text in str(error) for text in _NO_ROOM):
                fix = "an export as SQLite needs no copy, or set SQLITE_TMPDIR to a folder with room"
                raise StorageError(f"no room for a copy of {path.name}: {error}", fix=fix) from error
            raise BadDataError(f"not what nsys exports: {error}", location=path, fix=_FIX) from error
        export = Export(connection, path, "a folder of Parquet files")
        # Nothing links an export to its report: only their ages show that it is out of date.
        report = path.with_name(path.name.removesuffix("_pqtdir") + ".nsys-rep")
        if report.exists() and report.stat().st_mtime > max(file.stat().st_mtime for file in files):
            export.problems.append(f"{report.name} is newer than this export of it: export it again")
        return capture_of(export)


def _copy(connection: sqlite3.Connection, path: Path, table: str) -> None:
    with needs("analysis"):
        import pyarrow.parquet
    try:
        file = pyarrow.parquet.ParquetFile(path)
        if file.metadata.num_rows > MOST_ROWS:
            raise BadDataError(
                f"{file.metadata.num_rows} rows: more than lab reads ({MOST_ROWS})", location=path
            )
        names = file.schema_arrow.names
        # Without types, so that every value keeps its own.
        connection.execute(f"CREATE TABLE {quoted(table)} ({', '.join(map(quoted, names))})")
        if not _READ.match(table):
            return
        insert = f"INSERT INTO {quoted(table)} VALUES ({', '.join('?' * len(names))})"
        for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
            connection.executemany(insert, _rows(batch))
    except (pyarrow.lib.ArrowException, OSError) as error:
        raise BadDataError(
            f"truncated, damaged or still being written: {str(error).splitlines()[0][:200]}",
            location=path,
            fix=_FIX,
        ) from error
    except OverflowError as error:
        raise BadDataError(f"{table} has values that are not integers: {error}", location=path) from error


def _rows(batch: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of a batch; a name with invalid UTF-8 must not make the whole recording unreadable."""
    import pyarrow

    columns = []
    for column in batch.columns:
        if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
            raw = column.cast(pyarrow.large_binary()).to_pylist()
            columns.append([None if cell is None else cell.decode("utf-8", "replace") for cell in raw])
        else:
            columns.append(column.to_pylist())
    return zip(*columns, strict=True)
