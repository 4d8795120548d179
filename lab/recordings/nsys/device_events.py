"""Sampled GPU metrics (`--gpu-metrics-devices`) and page faults of unified memory of an export.

A row of GPU_METRICS is one metric of one GPU at one time. The lowest byte of its `typeId` is the GPU's number
in the sampler (TARGET_INFO_GPU.pwGpuId), which is not its CUDA id. Only the metrics in METRICS are read: an
export holds thirty of them, ten thousand times per second.
"""

from __future__ import annotations

import numpy as np

from lab.core.words import plural
from lab.errors import BadDataError
from lab.recordings.counters import DeviceEvents
from lab.recordings.nsys.export import Export, host_pid_of, pid_of

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
