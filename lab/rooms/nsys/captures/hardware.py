"""Sampled GPU metrics per range and kernel, and traffic of unified memory per range, as nsys records them.

A metric belongs to a GPU, not to a process: whatever else runs there is in it. A sample counts for a range if
the time from one sampling period before it to one after it lies between the first start and the last end of
the GPU work that one instance of the range launched; for a kernel if that time lies in launches of it. Then
it is of that work alone, whether the sampler stamps the start or the end of a period. Work shorter than two
periods has no sample and no mean.

Migrations and page faults have no launching call. One counts for a range if it begins between the range's
start on the CPU and its end there, or the end of its last GPU operation if that is later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lab.recordings.capture import Capture, DeviceEvents
from lab.recordings.projection import Projection
from lab.recordings.projection.sums import sums_by_group
from lab.rooms.nsys.captures.phases import Path
from lab.stats import intervals

METRICS = {
    "sm_active": "SM active",
    "tensor_active": "tensor active",
    "dram_read": "DRAM read",
    "dram_write": "DRAM write",
}
UNKNOWN_GPU = "GPU metrics were sampled, but on which of the process's devices is not recorded"
TRAFFIC = {
    "to_device_mb": "to GPU, MB",
    "to_host_mb": "to CPU, MB",
    "between_gpus_mb": "between, MB",
    "cpu_page_faults": "CPU faults",
    "gpu_page_faults": "GPU faults",
}
_MIGRATIONS = {11: "to_device_mb", 12: "to_host_mb", 13: "between_gpus_mb"}  # by copyKind


def gpu_metrics(
    projection: Projection,
    rows_by_path: Mapping[Path, np.ndarray],
    step_of_operation: np.ndarray,
    kernels_by_name: Mapping[str, np.ndarray],
) -> dict[str, Any] | None:
    """Return `period_us`, and a row per range and kernel: samples, the mean of each metric in percent.

    rows_by_path: the ranges of each path; () is the step, with the operations of step_of_operation (n,)
    (-1: none). kernels_by_name: masks (n,) of the operations. None where no metrics were recorded, or not on
    which GPU.
    """
    capture = projection.capture
    gpus = _gpus(capture)
    if not gpus or capture.device_events is None:
        return None
    samples = capture.device_events.samples
    gaps_ns = np.concatenate([np.diff(times) for times, _ in samples.values()])
    period_ns = int(np.median(gaps_ns)) if len(gaps_ns) else 0
    ops = capture.ops
    spans = np.stack([ops.start_ns, ops.end_ns], axis=1)

    def row(spans_by_gpu: Mapping[int, np.ndarray]) -> dict[str, Any]:
        means: dict[str, Any] = {"samples": 0}
        for metric in METRICS:
            percents = [
                percent[_lie_in(spans, times, period_ns)]
                for gpu, spans in spans_by_gpu.items()
                if (gpu, metric) in samples
                for times, percent in [samples[gpu, metric]]
            ]
            pooled = np.concatenate([np.empty(0), *percents])
            means[f"{metric}_percent"] = float(pooled.mean()) if len(pooled) else None
            means["samples"] = max(means["samples"], len(pooled))
        return means

    on_gpu = {gpu: ops.device == device for device, gpu in gpus.items()}
    ranges = []
    for path, rows in rows_by_path.items():
        instance = projection.owners(rows) if path else step_of_operation
        work = {gpu: _extents(capture, np.where(mask, instance, -1)) for gpu, mask in on_gpu.items()}
        ranges.append({"path": path, **row(work)})
    kernels = [
        {"name": name, **row({gpu: spans[launches & mask] for gpu, mask in on_gpu.items()})}
        for name, launches in kernels_by_name.items()
    ]
    return {"period_us": period_ns / 1e3, "ranges": ranges, "kernels": kernels}


def has_unknown_gpu(capture: Capture) -> bool:
    """Whether metrics were sampled, and nothing says that it was on a GPU of this process."""
    return bool(capture.device_events and capture.device_events.samples) and not _gpus(capture)


def _gpus(capture: Capture) -> dict[int, int]:
    """Map CUDA devices of this process to sampled GPUs; {} if none was, or which is not recorded."""
    events = capture.device_events
    if events is None or not events.samples or not len(capture.ops):
        return {}
    sampled = {gpu for gpu, _ in events.samples}
    devices = np.unique(capture.ops.device).tolist()
    pid = capture.processes[0].pid
    gpus = {device: events.gpus.get((pid, device), -1) for device in devices} if pid is not None else {}
    if not events.gpus and len(sampled) == len(devices) == 1:
        gpus = {devices[0]: next(iter(sampled))}
    return {device: gpu for device, gpu in gpus.items() if gpu in sampled}


def _extents(capture: Capture, instance: np.ndarray) -> np.ndarray:
    """First start and last end (m, 2) of the operations of each instance (n,); -1 is none."""
    sums = sums_by_group(capture, instance, instance.max(initial=-1) + 1, with_span=True)
    return np.stack([sums["first_ns"], sums["last_ns"]], axis=1)[sums["num_ops"] > 0]


def _lie_in(spans: np.ndarray, times: np.ndarray, period_ns: int) -> np.ndarray:
    """Mask the samples (n,) with a period on either side inside the spans."""
    around = np.stack([times - period_ns, times + period_ns], axis=1)
    mask: np.ndarray = intervals.overlap(around, spans) == 2 * period_ns
    return mask


def unified_memory(
    projection: Projection, rows_by_path: Mapping[Path, np.ndarray], num_steps: int
) -> dict[str, Any] | None:
    """Return `in_all`, and a row per range with the figures per step: MB that migrated, and page faults.

    None where no migration and no fault was recorded; a fault of a side that was not traced is None.
    """
    capture = projection.capture
    events = _traffic(capture)
    if projection.part is not None or not events:
        return None
    ranges = capture.ranges
    rows_of_table = []
    for path, rows in rows_by_path.items():
        if not len(rows):
            continue
        ends = np.maximum(ranges.end_ns[rows], projection.instances.last_ns[rows])
        windows = intervals.union(np.stack([ranges.start_ns[rows], ends], axis=1))
        rows_of_table.append({"path": path, **_sums(events, windows, num_steps)})
    return {"in_all": _sums(events, None, 1), "ranges": rows_of_table}


def _traffic(capture: Capture) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Collect start in ns (n,) and amount (n,) of what was recorded, by column of TRAFFIC."""
    ops, events = capture.ops, capture.device_events or DeviceEvents({}, {}, {})
    traffic = {}
    if np.isin(ops.copy_kind, list(_MIGRATIONS)).any():
        for kind, column in _MIGRATIONS.items():
            rows = np.flatnonzero(ops.copy_kind == kind)
            traffic[column] = ops.start_ns[rows], np.maximum(ops.bytes[rows], 0) / 1e6
    for side, faults in events.faults.items():
        of_process = np.isin(faults["pid"], (-1, capture.processes[0].pid or -1))
        traffic[f"{side}_page_faults"] = faults["start_ns"][of_process], faults["pages"][of_process]
    return traffic


def _sums(
    events: Mapping[str, tuple[np.ndarray, np.ndarray]], windows: np.ndarray | None, num_steps: int
) -> dict[str, float | None]:
    sums: dict[str, float | None] = dict.fromkeys(TRAFFIC)
    for column, (start_ns, amount) in events.items():
        if windows is not None:
            opened = np.searchsorted(windows[:, 0], start_ns, side="right")
            closed = np.searchsorted(windows[:, 1], start_ns, side="left")
            amount = amount[opened > closed]
        sums[column] = float(amount.sum()) / num_steps
    return sums
