"""What an export says about its GPUs and about how it was made, and whether it is complete."""

from __future__ import annotations

import re
from typing import Any

from lab.recordings.capture import Capture, Device
from lab.recordings.nsys.export import PREFIX, Export
from lab.recordings.sqlite import quoted


def read_devices(export: Export) -> tuple[Device, ...]:
    gpus = {row["id"]: row for row in _dicts(export, "TARGET_INFO_GPU") if "id" in row}
    on_process = [
        row for row in _dicts(export, "TARGET_INFO_CUDA_DEVICE") if {"gpuId", "cudaId", "pid"} <= row.keys()
    ]
    if not on_process:
        return tuple(_device(gpu, gpu.get("cuDevice", index), -1) for index, gpu in enumerate(gpus.values()))
    return tuple(
        _device(gpus[one["gpuId"]], one["cudaId"], one["pid"]) for one in on_process if one["gpuId"] in gpus
    )


def _device(gpu: dict[str, Any], device: int, pid: int) -> Device:
    compute = (gpu.get("computeMajor"), gpu.get("computeMinor"))
    return Device(
        device=device,
        name=str(gpu.get("name", "")),
        pid=pid,
        memory_bytes=gpu.get("totalMemory"),
        bandwidth_bytes_per_s=gpu.get("memoryBandwidth"),
        clock_hz=gpu.get("clockRate"),
        num_sms=gpu.get("smCount"),
        compute=None if None in compute else compute,  # type: ignore[arg-type]
    )


def _dicts(export: Export, table: str) -> list[dict[str, Any]]:
    columns = sorted(export.tables.get(table, ()))
    rows = export.rows(table, ", ".join(map(quoted, columns))) if columns else []
    return [dict(zip(columns, row, strict=True)) for row in rows]


def read_info(export: Export) -> dict[str, str]:
    """How the capture was made; never the environment, the command or a user."""
    meta = export.pairs("META_DATA_CAPTURE")
    modes = {value for name, value in meta.items() if name.endswith("CUDA_GRAPH_TRACE_OPTIONS:MODE")}
    info = {"graph_mode": sorted(modes)[0]} if modes else {}
    for name, value in export.rows("TARGET_INFO_SYSTEM_ENV", "name, value"):
        if name == "NvDriverVersion" and value:
            info["driver"] = str(value)
    return info


def check_counts(export: Export) -> None:
    """Compare the number of rows with the event counts that nsys recorded, where it did."""
    diagnostics = " ".join(str(text) for (text,) in export.rows("DIAGNOSTIC_EVENT", "text"))
    cuda = [PREFIX + name for name in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET")]
    for what, tables in (("NVTX", ["NVTX_EVENTS"]), ("CUDA", cuda)):
        expected = sum(map(int, re.findall(rf"Number of {what} events collected: *\t?(\d+)", diagnostics)))
        found = sum(export.rows(table, "COUNT(*)")[0][0] for table in tables if table in export.tables)
        if expected and expected != found:
            export.problems.append(f"nsys collected {expected} {what} events, but this export has {found}")


def check_presence(capture: Capture) -> None:
    if not capture.kernels.any():
        capture.problems.append("no kernels were recorded")
    if not len(capture.ranges):
        capture.problems.append("no NVTX ranges were recorded")
