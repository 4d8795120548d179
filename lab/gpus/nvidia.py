"""NVIDIA GPUs by nvidia-smi, or by NVML where that is missing."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess

from lab.core.gpu import Gpu
from lab.errors import GpuError

NVIDIA_QUERY = (
    "index",
    "uuid",
    "name",
    "driver_version",
    "memory.total",
    "power.limit",
    "clocks.max.sm",
    "clocks.max.memory",
    "compute_cap",
)


def nvidia_gpus() -> list[Gpu]:
    if shutil.which("nvidia-smi") is None:
        return _nvml()
    command = ["nvidia-smi", f"--query-gpu={','.join(NVIDIA_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuError(
            f"nvidia-smi does not answer: {error}", fix="run nvidia-smi by hand; the driver may be hung"
        ) from error
    if done.returncode:
        text = (done.stdout + done.stderr).strip()
        if re.search("No devices were found|couldn't communicate with the NVIDIA driver", text):
            return []
        raise GpuError(
            f"nvidia-smi failed (exit code {done.returncode}): {text[:300]}", fix="run nvidia-smi by hand"
        )
    return parse_nvidia_smi(done.stdout)


def parse_nvidia_smi(text: str) -> list[Gpu]:
    """Read the CSV of `nvidia-smi --query-gpu` with the columns of NVIDIA_QUERY."""
    gpus = []
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) != len(NVIDIA_QUERY):
            continue
        field = dict(zip(NVIDIA_QUERY, (cell.strip() for cell in row), strict=True))
        memory, cap = _number(field["memory.total"]), field["compute_cap"]
        gpus.append(
            Gpu(
                vendor="nvidia",
                index=int(field["index"]),
                uuid=field["uuid"],
                name=field["name"],
                driver=field["driver_version"],
                mem_bytes=int(memory * 2**20) if memory is not None else None,
                power_limit_w=_number(field["power.limit"]),
                max_sm_mhz=_number(field["clocks.max.sm"]),
                max_mem_mhz=_number(field["clocks.max.memory"]),
                arch=f"sm_{cap.replace('.', '')}" if re.fullmatch(r"\d+\.\d+", cap) else None,
            )
        )
    return gpus


def _nvml() -> list[Gpu]:
    """The same through NVML, for containers without nvidia-smi. Needs the package nvidia-ml-py."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [
            Gpu(
                vendor="nvidia",
                index=i,
                uuid=_text(pynvml.nvmlDeviceGetUUID(h)),
                driver=driver,
                name=_text(pynvml.nvmlDeviceGetName(h)),
                mem_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(h).total),
            )
            for i, h in enumerate(handles)
        ]
    finally:
        pynvml.nvmlShutdown()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]", "[Not Supported]"
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
