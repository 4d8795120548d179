"""Reader of Nsight Systems' exports (`nsys export --type sqlite` or `parquetdir`), of every schema so far.

Tables without rows are absent from an export and columns come and go between versions, so the reader asks for
both before it uses them. Both exports hold the same tables, so one reader serves them (`Export`). A file is
opened read-only; strings that no event uses (the environment of the process, among others) are not read.
Times are ns on one clock for host and device. Ids pack the process: pid = globalTid >> 24 & 0xFFFFFF, and the
lowest 24 bits are the thread.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.core.words import plural
from lab.errors import BadDataError, MissingError
from lab.recordings.capture import Capture, DeviceEvents, Process, by_process
from lab.recordings.nsys.export import (
    Export,
    StringIds,
    among,
    host_pid_of,
    low_bits,
    read_devices,
    read_info,
    stated_lacks,
    untraced_lacks,
)
from lab.recordings.nsys.operations import never_closed, read_tables, with_bare_names
from lab.recordings.sqlite import opened
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
    rows = export.integers("GPU_METRICS", _SAMPLED, None, among("metricId", tuple(metrics)))
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
    rows = export.integers(table, {"start_ns": "start"}, optional)
    pid = low_bits(host_pid_of(rows["global_pid"]))
    return {"pid": pid, "start_ns": rows["start_ns"], "pages": np.maximum(rows["pages"], 1)}


REPORT_SUFFIXES = (".nsys-rep", ".qdrep")


def load(path: Path | str) -> Capture:
    """Read an export as SQLite."""
    path = Path(path)
    with opened(path) as connection:
        return capture_of(Export(connection, path))


def capture_of(export: Export) -> Capture:
    """The capture in an export."""
    export.check()
    lacks = stated_lacks(export)
    strings = StringIds(export)
    (ops, api, ranges, sync, osrt, nodes), processes = _by_process(read_tables(export, strings))
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
    for rows, name in ((capture.kernels, "kernels"), (capture.ranges.kind >= 0, "NVTX ranges")):
        if not rows.any():
            capture.problems.append(f"no {name} were recorded")
    return capture


def _by_process(tables: Sequence[Table]) -> tuple[list[Table], tuple[Process, ...]]:
    """The tables and processes with plain pids, told apart by machine and pid."""
    keyed, processes = by_process(tables)
    plain = [table.with_columns(pid=low_bits(table.pid)) for table in keyed]
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
