"""Which processes use a GPU besides those of a step: said in a plan, recorded before, during and after it.

A process of a step is known by the variable LAB_STEP in its environment, which all its children inherit.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.core.gpu import STEP, Gpu, GpuProcess
from lab.core.words import printable
from lab.errors import GpuError
from lab.gpus.nvidia import smi

ANSWER_S = 10.0
MIB = 2**20
HIDDEN_BYTES = 1024 * MIB  # more than an idle driver keeps for itself
AS_CSV = "--format=csv,noheader,nounits"
QUERY = ("--query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory", AS_CSV)
MEMORY = ("--query-gpu=uuid,memory.used", AS_CSV)


def processes_on(gpus: Sequence[Gpu], env: Mapping[str, str] | None = None) -> list[GpuProcess]:
    """The processes that compute on these GPUs now, as far as drivers and this user's rights show them."""
    env = os.environ if env is None else env
    amd = [gpu for gpu in gpus if gpu.vendor == "amd"]
    nvidia = [gpu.uuid for gpu in gpus if gpu.vendor == "nvidia"]
    rows = [process for gpu in amd for process in _of_kfd(gpu, env)]
    if not nvidia:
        return rows
    by_nvml = nvml_processes(nvidia)
    if by_nvml is None or not all(process.name or not process.pid for process in by_nvml):
        by_nvml = _by_smi(nvidia) or by_nvml or []  # it names processes that NVML does not
    return rows + by_nvml


def others(processes: Iterable[GpuProcess], step: str) -> list[GpuProcess]:
    """Processes that are not of this step; memory without a process has no owner once the step runs."""
    return [process for process in processes if process.pid and not _is_of_step(process.pid, step)]


def sentence(process: GpuProcess, gpus: Sequence[Gpu]) -> str:
    """Say who uses which GPU, and how much of it."""
    gpu = next((g for g in gpus if process.gpu == g.uuid), None)
    subject = f"GPU {gpu.number}" if gpu else f"GPU {process.gpu}"
    size = "" if process.mem_bytes is None else f" and holds {process.mem_bytes / MIB:,.0f} MiB"
    busy = "" if process.sm_percent is None else f" ({process.sm_percent} % of its SMs)"
    if not process.pid:
        taken = size.removeprefix(" and holds ")
        return f"{subject} is in use: {taken} are taken by what cannot be seen from here"
    name = printable(process.name) or "?"
    return f"{subject} is in use: process {process.pid} ({name}) runs on it{size}{busy}"


def notes_on(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """A sentence per process on these GPUs, for a plan: what is measured beside it is not the GPU alone."""
    return tuple(
        f"{sentence(process, gpus)}; timings beside it are not of a free GPU"
        for process in processes_on(gpus)
    )


def nvml_processes(uuids: Sequence[str]) -> list[GpuProcess] | None:
    """Ask NVML for the processes; None where it cannot be asked."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - no package, library or driver: nvidia-smi is asked instead
        return None
    try:
        return [process for uuid in uuids for process in _of_nvml(nvml, uuid)]
    finally:
        nvml.nvmlShutdown()


def _of_nvml(nvml: Any, uuid: str) -> list[GpuProcess]:
    def answer(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(*arguments)
        except (nvml.NVMLError, AttributeError, UnicodeDecodeError):
            return None

    handle = answer("nvmlDeviceGetHandleByUUID", uuid)
    if handle is None:
        return []
    running = answer("nvmlDeviceGetComputeRunningProcesses", handle) or []
    shares = {
        sample.pid: sample.smUtil for sample in answer("nvmlDeviceGetProcessUtilization", handle, 0) or []
    }
    rows = [
        GpuProcess(
            gpu=uuid,
            pid=process.pid,
            name=_text(answer("nvmlSystemGetProcessName", process.pid)) or _comm(process.pid),
            mem_bytes=process.usedGpuMemory,
            sm_percent=shares.get(process.pid),
        )
        for process in running
    ]
    memory = answer("nvmlDeviceGetMemoryInfo", handle)
    return rows or _hidden(uuid, getattr(memory, "used", None))


def _text(value: str | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""


def _by_smi(uuids: Sequence[str]) -> list[GpuProcess]:
    """Ask nvidia-smi, for hosts without nvidia-ml-py."""
    processes = [row for row in _smi(*QUERY) if len(row) == 4 and row[0] in uuids and row[1].isdecimal()]
    rows = [
        GpuProcess(gpu=gpu, pid=int(pid), name=name, mem_bytes=_bytes(used))
        for gpu, pid, name, used in processes
    ]
    busy = {process.gpu for process in rows}
    memory = [row for row in _smi(*MEMORY) if len(row) == 2 and row[0] in uuids and row[0] not in busy]
    return rows + [process for uuid, used in memory for process in _hidden(uuid, _bytes(used))]


def _smi(*arguments: str) -> list[list[str]]:
    """The rows that nvidia-smi prints; none where it fails."""
    try:
        code, text = smi(*arguments, timeout_s=ANSWER_S)
    except GpuError:
        return []
    rows = csv.reader(io.StringIO("" if code else text), skipinitialspace=True)
    return [[cell.strip() for cell in row] for row in rows]


def _bytes(mebibytes: str) -> int | None:
    return int(mebibytes) * MIB if mebibytes.isdecimal() else None


def _hidden(uuid: str, used_bytes: int | None) -> list[GpuProcess]:
    """Memory that no listed process holds: of another container, or another user's."""
    if used_bytes is None or used_bytes < HIDDEN_BYTES:
        return []
    return [GpuProcess(gpu=uuid, pid=0, mem_bytes=used_bytes)]


def _of_kfd(gpu: Gpu, env: Mapping[str, str]) -> list[GpuProcess]:
    """An AMD GPU's processes: the kernel writes each one's memory below its number in KFD's folder."""
    kfd = Path(env.get("LAB_SYS_ROOT") or "/sys") / "class/kfd/kfd"
    minor = (gpu.render_node or "").rpartition("renderD")[2]
    numbers = [
        _read(node.with_name("gpu_id"))
        for node in kfd.glob("topology/nodes/*/properties")
        if f"drm_render_minor {minor}\n" in f"{_read(node)}\n"
    ]
    rows = []
    for number in filter(None, numbers):
        for path in sorted(kfd.glob(f"proc/*/vram_{number}")):
            used, pid = _read(path), path.parent.name
            if pid.isdecimal() and used.isdecimal() and int(used):
                rows.append(GpuProcess(gpu=gpu.uuid, pid=int(pid), name=_comm(int(pid)), mem_bytes=int(used)))
    return rows


def _comm(pid: int) -> str:
    return _read(Path(f"/proc/{pid}/comm"))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _is_of_step(pid: int, step: str) -> bool:
    """Whether this process has inherited LAB_STEP; False where its environment is another user's."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{STEP}={step}".encode() in variables
