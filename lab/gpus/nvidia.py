"""NVIDIA GPUs by nvidia-smi, or by NVML where that is missing; a GPU that MIG divides by its instances."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

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
)
MIG_MODE, COMPUTE_CAP = "mig.mode.current", "compute_cap"  # unknown to drivers before 450 and 510
ALL_COLUMNS = (*NVIDIA_QUERY, COMPUTE_CAP, MIG_MODE)
OLDER_COLUMNS = ((*NVIDIA_QUERY, MIG_MODE), NVIDIA_QUERY)
TIMEOUT_S = 30
NVIDIA_VENDOR, DISPLAY_CLASS = "0x10de", "0x03"
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")  # made by Docker and podman
NO_GPU = re.compile("No devices were found")
LOST = re.compile(r"Unable to determine the device handle|GPU is lost|fallen off the bus", re.IGNORECASE)
NO_DRIVER = re.compile("couldn't communicate with the NVIDIA driver")
UNKNOWN_COLUMN = re.compile("is not a valid field to query", re.IGNORECASE)
# A line of `nvidia-smi -L`: a GPU, or below it one of its MIG instances.
GPU_LINE = re.compile(r"GPU\s+\d+:.*\(UUID:\s*(?P<uuid>[^)\s]+)\)")
MIG_LINE = re.compile(
    r"\s+MIG\s+(?P<profile>\S+)\s+Device\s+(?P<number>\d+):\s*\(UUID:\s*(?P<uuid>[^)\s]+)\)"
)
# What a GPU answers that has fallen off the bus or needs a reset, in place of its UUID or name.
DEAD = re.compile(r"Unknown Error|GPU is lost|requires reset|\bERR!|No data", re.IGNORECASE)
DEAD_CURE = "see the kernel's log for its Xid (dmesg), then nvidia-smi --gpu-reset, or restart the machine"
NVML_NO_DRIVER, NVML_NO_LIBRARY = 9, 12
NVML_DEAD = (15, 16, 999)  # is lost, requires a reset, unknown


class Inventory(NamedTuple):
    """What NVIDIA's driver offers: whole GPUs, and the instances of those that MIG divides."""

    usable: list[Gpu]
    empty: list[Gpu] = []  # MIG is enabled on these and has no instance: nothing can compute on them
    dead: list[Gpu] = []  # these do not answer; what they answered instead is their name


def nvidia_inventory(env: Mapping[str, str] | None = None) -> Inventory:
    """Raises GpuError where there are NVIDIA GPUs and the driver offers none to compute on."""
    env = os.environ if env is None else env
    if shutil.which("nvidia-smi") is None:
        return _nvml(env)
    columns: tuple[str, ...] = ALL_COLUMNS
    code, text = smi(*_query(columns))
    for fewer in OLDER_COLUMNS:
        if code and UNKNOWN_COLUMN.search(text):
            columns = fewer
            code, text = smi(*_query(columns))
    if code:
        return Inventory(_none_or_error(code, text.strip(), env))
    gpus, dead = split_dead(parse_nvidia_smi(text, columns))
    if (LOST.search(text) and not dead) or not (gpus or dead or NO_GPU.search(text)):
        raise GpuError(
            f"unreadable answer of nvidia-smi: {text.strip()[:300] or '(empty)'}",
            fix="see `nvidia-smi`; --gpus none runs on the CPU",
        )
    divided = divided_by_mig(text, columns)
    if gpus and (divided or MIG_MODE not in columns):
        code, text = smi("-L")
        if code:
            raise _smi_error(code, text.strip())
        return with_instances(gpus, divided, text)._replace(dead=dead)
    return some_usable(Inventory(gpus, dead=dead))


def parse_nvidia_smi(text: str, columns: Sequence[str] = ALL_COLUMNS) -> list[Gpu]:
    """Read the CSV of `nvidia-smi --query-gpu` with these columns."""
    rows = _rows(text, columns)
    if unreadable := next((row for row in rows if not row["index"].isdecimal()), None):
        raise GpuError(
            f"nvidia-smi lists a GPU that it cannot read: {', '.join(unreadable.values())[:300]}",
            fix="see `nvidia-smi` and the kernel's log (Xid); --gpus none runs on the CPU",
        )
    return [_gpu(row) for row in rows]


def split_dead(gpus: Sequence[Gpu]) -> tuple[list[Gpu], list[Gpu]]:
    """The GPUs that answer, and those whose driver has lost them: each named by what it answered."""
    dead = [gpu for gpu in gpus if DEAD.search(f"{gpu.uuid} {gpu.name}") or not gpu.uuid.startswith("GPU-")]
    renamed = (
        msgspec.structs.replace(gpu, name=gpu.name if DEAD.search(gpu.name) else gpu.uuid) for gpu in dead
    )
    return [gpu for gpu in gpus if gpu not in dead], list(renamed)


def divided_by_mig(text: str, columns: Sequence[str]) -> set[str]:
    """The UUIDs of the GPUs on which MIG is enabled, from the same CSV."""
    return {row["uuid"] for row in _rows(text, columns) if row.get(MIG_MODE) == "Enabled"}


def with_instances(gpus: Sequence[Gpu], divided: set[str], listing: str) -> Inventory:
    """The GPUs, each that MIG divides replaced by its instances in `nvidia-smi -L`.

    A divided GPU computes only through an instance. Raises GpuError when that leaves nothing to compute on.
    """
    instances: dict[str, list[tuple[int, str, str]]] = {}
    parent = ""
    for line in listing.splitlines():
        if match := GPU_LINE.match(line):
            parent = match["uuid"]
        elif match := MIG_LINE.match(line):
            instances.setdefault(parent, []).append((int(match["number"]), match["uuid"], match["profile"]))
    usable: list[Gpu] = []
    empty: list[Gpu] = []
    for gpu in gpus:
        gpu_instances = instances.get(gpu.uuid, [])
        usable += [_instance(gpu, *gpu_instance) for gpu_instance in gpu_instances]
        if not gpu_instances:
            (empty if gpu.uuid in divided else usable).append(gpu)
    return some_usable(Inventory(usable, empty))


def some_usable(inventory: Inventory) -> Inventory:
    """Check `inventory`. Raises GpuError for GPUs of which none can compute."""
    if inventory.usable or not (inventory.empty or inventory.dead):
        return inventory
    if inventory.dead:
        raise GpuError(
            f"no NVIDIA GPU here answers: {inventory.dead[0].name}",
            location=f"GPU {', '.join(str(gpu.index) for gpu in inventory.dead)}",
            fix=f"{DEAD_CURE}; --gpus none runs on the CPU",
        )
    raise GpuError(
        "MIG is enabled and has no instance on any GPU, so nothing can compute on them",
        location=", ".join(f"{gpu.index} {gpu.name} {gpu.uuid}" for gpu in inventory.empty),
        fix="make instances (nvidia-smi mig -cgi PROFILE -C), or disable MIG (nvidia-smi -mig 0)",
    )


def _instance(gpu: Gpu, number: int, uuid: str, profile: str) -> Gpu:
    """One MIG instance. Memory and power of the whole board are not its own."""
    return msgspec.structs.replace(
        gpu,
        uuid=uuid,
        name=f"{gpu.name} MIG {profile}",
        parent=gpu.uuid,
        instance=number,
        mem_bytes=None,
        power_limit_w=None,
    )


def _query(columns: Sequence[str]) -> tuple[str, str]:
    return f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"


def smi(*arguments: str, timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """-> exit code, and what it printed (with its complaints, if it failed).

    Raises GpuError without an answer.
    """
    try:
        process = subprocess.run(
            ["nvidia-smi", *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuError(
            f"nvidia-smi does not answer: {error}", fix="run nvidia-smi by hand; the driver may be hung"
        ) from error
    return process.returncode, process.stdout + (process.stderr if process.returncode else "")


def _none_or_error(code: int, text: str, env: Mapping[str, str]) -> list[Gpu]:
    if NO_DRIVER.search(text):
        return _none_without_driver(env, text)
    if NO_GPU.search(text):
        return []
    raise _smi_error(code, text)


def _none_without_driver(env: Mapping[str, str], text: str) -> list[Gpu]:
    """No GPUs, unless one is on the PCI bus: then raise GpuError, because its driver is not loaded."""
    if cards := _cards(env):
        raise GpuError(
            f"this machine has an NVIDIA GPU, and its driver is not loaded: {text[:300]}",
            location=f"PCI {', '.join(cards)}",
            fix="sudo modprobe nvidia, or install the driver for this kernel; --gpus none runs on the CPU",
        )
    return []


def _none_without_tools(env: Mapping[str, str]) -> list[Gpu]:
    """Where nothing can list GPUs there are none, unless the driver's own device is here."""
    device = Path(env.get("LAB_DEV_ROOT") or "/dev") / "nvidiactl"
    if device.exists():
        raise GpuError(
            "NVIDIA's driver is loaded, and nothing here can list its GPUs: no nvidia-smi, no NVML",
            location=device,
            fix="install the driver's nvidia-smi, or nvidia-ml-py (in a container: "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility); --gpus none runs on the CPU",
        )
    return []


def cards_without_driver(env: Mapping[str, str]) -> str | None:
    """A sentence on NVIDIA GPUs that the PCI bus has and no driver offers; for where no GPU was found.

    None in a container too, which sees the host's bus and need not have been given its GPUs.
    """
    cards = [] if in_container(env) else _cards(env)
    subject = "an NVIDIA GPU is" if len(cards) == 1 else f"{len(cards)} NVIDIA GPUs are"
    return f"{subject} on the PCI bus ({', '.join(cards)}) without NVIDIA's driver" if cards else None


def in_container(env: Mapping[str, str]) -> bool:
    """Whether this process runs in a container, whose /sys shows the host's GPUs, given to it or not."""
    return bool(env.get("LAB_IMAGE")) or any(Path(mark).exists() for mark in CONTAINER_MARKS)


def _cards(env: Mapping[str, str]) -> list[str]:
    """The PCI addresses of NVIDIA's display controllers (VGA and 3D), as the kernel lists them."""
    folder = Path(env.get("LAB_SYS_ROOT") or "/sys") / "bus/pci/devices"
    return sorted(
        card.name
        for card in folder.glob("*")
        if _read(card / "vendor") == NVIDIA_VENDOR and _read(card / "class").startswith(DISPLAY_CLASS)
    )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _smi_error(code: int, text: str) -> GpuError:
    return GpuError(f"nvidia-smi failed (exit code {code}): {text[:300]}", fix="run nvidia-smi by hand")


def _rows(text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of the CSV, without warnings between them. A row of a GPU with other columns is an error."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text), skipinitialspace=True)]
    if odd := next((row for row in rows if len(row) != len(columns) and _is_of_a_gpu(row)), None):
        raise GpuError(
            f"unreadable answer of nvidia-smi: a GPU in {len(odd)} columns instead of {len(columns)}",
            location=", ".join(odd)[:300],
            fix="see `nvidia-smi`; --gpus none runs on the CPU",
        )
    return [dict(zip(columns, row, strict=True)) for row in rows if len(row) == len(columns)]


def _is_of_a_gpu(row: Sequence[str]) -> bool:
    return len(row) > 1 and (row[0].isdecimal() or row[1].startswith("GPU-"))


def _gpu(field: Mapping[str, str]) -> Gpu:
    memory = _number(field["memory.total"])
    return Gpu(
        vendor="nvidia",
        index=int(field["index"]),
        uuid=field["uuid"],
        name=field["name"],
        driver=field["driver_version"],
        mem_bytes=int(memory * 2**20) if memory is not None else None,
        power_limit_w=_number(field["power.limit"]),
        max_sm_mhz=_number(field["clocks.max.sm"]),
        max_mem_mhz=_number(field["clocks.max.memory"]),
        arch=_arch(field.get("compute_cap", "")),
    )


def _arch(capability: str) -> str | None:
    return f"sm_{capability.replace('.', '')}" if re.fullmatch(r"\d+\.\d+", capability) else None


# NVML


def _nvml(env: Mapping[str, str]) -> Inventory:
    """Inventory through NVML, for containers without nvidia-smi. Needs the package nvidia-ml-py."""
    try:
        import pynvml
    except ImportError:
        return Inventory(_none_without_tools(env))
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        code = getattr(error, "value", None)
        if code == NVML_NO_LIBRARY:
            return Inventory(_none_without_tools(env))
        if code == NVML_NO_DRIVER:
            return Inventory(_none_without_driver(env, str(error)))
        raise _nvml_error(error) from error
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        boards = [_nvml_gpus(pynvml, index, driver) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        raise _nvml_error(error) from error
    finally:
        pynvml.nvmlShutdown()
    usable = [gpu for _, gpus in boards for gpu in gpus]
    silent = [whole for whole, gpus in boards if not gpus]
    dead = [gpu for gpu in silent if not gpu.uuid]
    return some_usable(Inventory(usable, [gpu for gpu in silent if gpu.uuid], dead))


def _nvml_gpus(nvml: Any, index: int, driver: str) -> tuple[Gpu, list[Gpu]]:
    """One GPU, and what computes on it: itself, its MIG instances, nothing if the driver has lost it."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        if getattr(error, "value", None) not in NVML_DEAD:
            raise
        return Gpu(vendor="nvidia", index=index, uuid="", name=str(error), driver=driver), []
    board = Gpu(
        vendor="nvidia",
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        driver=driver,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        mem_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        arch="sm_{}{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle)),
    )
    if not _mig_enabled(nvml, handle):
        return board, [board]
    instances = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError_NotFound:  # a number may be free
            continue
        uuid, name = _text(nvml.nvmlDeviceGetUUID(instance)), _text(nvml.nvmlDeviceGetName(instance))
        profile = name.rpartition("MIG ")[2]
        instances.append(_instance(board, number, uuid, profile))
    return board, instances


def _mig_enabled(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):  # no MIG on this GPU or driver
        return False


def _nvml_error(error: Exception) -> GpuError:
    return GpuError(
        f"NVML does not answer: {error}",
        fix="run nvidia-smi by hand: after an update of the driver the machine needs a restart",
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]", "[Not Supported]"
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
