"""Runs first in a step: it writes down what the step sees of the machine, then becomes the step's command.

Run as `python -I -S launch.py FILE -- argv...`. Only the standard library, because it runs on the Python of
any image, before anything of lab could be imported. What it cannot read is null: the command starts anyway.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import platform
import re
import sys
from typing import Any

INTERNAL = re.compile(
    r"LAB_(STEP|ATTEMPT|CODE_\w+|IMAGE_ID|GPU_UUIDS|HOST|NUM_GPUS|STALL_TIMEOUT_S|DEPENDENCIES|REPORTED)\Z"
)
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
NOT_SECRET = "TOKENIZERS_PARALLELISM"
KEPT = re.compile(r"LAB_|NVIDIA_|SLURM_JOB|HF_HUB_OFFLINE|HSA_|LD_PRELOAD|PYTHONHASHSEED|CUDA_")
V1 = {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.cfs_quota_us"}
UNLIMITED = 1 << 60


def main() -> None:
    path, argv = sys.argv[1], sys.argv[3:]
    try:
        write(path, seen(dict(os.environ)))
    except OSError as error:
        print(f"lab: the step's report cannot be written: {error}", file=sys.stderr)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"lab: cannot start {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(126 if isinstance(error, PermissionError) else 127)


def write(path: str, report: dict[str, Any]) -> None:
    temporary = f"{path}.tmp"
    handle = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
        json.dump(report, file)
    os.replace(temporary, path)


def seen(env: dict[str, str]) -> dict[str, Any]:
    promised, set_here = env.get("LAB_NUM_GPUS", ""), env.get("LAB_REPORTED", "").split(",")
    return {
        "attempt": int(env["LAB_ATTEMPT"]) if env.get("LAB_ATTEMPT", "").isdecimal() else 1,
        "node": env.get("LAB_HOST") or env.get("SLURMD_NODENAME") or platform.node(),
        "image_id": env.get("LAB_IMAGE_ID") or None,
        "python": platform.python_version(),
        "env": {name: env[name] for name in sorted(env) if is_kept(name, set_here)},
        "cpus": len(os.sched_getaffinity(0)),
        **limits(),
        "gpus": gpus() if promised.isdecimal() and int(promised) else [],
    }


def is_kept(name: str, set_here: list[str]) -> bool:
    if INTERNAL.match(name) or (SECRET.search(name) and name != NOT_SECRET):
        return False
    return name in set_here or name.startswith(families()) or KEPT.match(name) is not None


@functools.cache
def families() -> tuple[str, ...]:
    """How the variables of GPU work begin, from the table beside this copy of lab."""
    with open(os.path.join(os.path.dirname(os.path.dirname(__file__)), "gpus", "environment.json")) as file:
        table = json.load(file)
    return (*table["families"], *table["names"])


def limits() -> dict[str, float | None]:
    """Limits of this control group: bytes of memory, CPUs as a quota, processes; null: without a limit."""
    return {
        "memory_limit_bytes": number(limit("memory")),
        "cpu_limit": cpus(limit("cpu")),
        "pids_limit": number(limit("pids")),
    }


def limit(controller: str) -> str:
    """The text of the nearest limit above this process, in version 2 or 1 of the kernel's groups."""
    groups: dict[str, str] = {}
    for line in text("/proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        groups.update(dict.fromkeys(names.split(","), path))
    path, below = (
        (groups[controller], f"/{controller}") if controller in groups else (groups.get("", "/"), "")
    )
    name = V1[controller] if below else f"{controller}.max"
    while True:
        folder = f"/sys/fs/cgroup{below}"
        content = text(f"{folder}{path.rstrip('/')}/{name}") or text(f"{folder}/{name}")
        if (content and not content.startswith(("max", "-1"))) or path in ("", "/"):
            return content
        path = path.rpartition("/")[0]


def available_bytes() -> int | None:
    """Return what this process may still take by Linux' estimate and its group's limit; None if not known."""
    lines = (line.split() for line in text("/proc/meminfo").splitlines())
    host_kib = next((int(words[1]) for words in lines if words[:1] == ["MemAvailable:"]), None)
    if host_kib is None:
        return None
    group_limit = number(limit("memory"))
    return host_kib * 1024 if group_limit is None else min(host_kib * 1024, group_limit)


def number(content: str) -> int | None:
    return int(content) if content.isdecimal() and int(content) < UNLIMITED else None


def cpus(content: str) -> float | None:
    quota, _, period = content.partition(" ")
    if not quota.lstrip("-").isdecimal() or int(quota) <= 0:
        return None
    return int(quota) / int(period if period.isdecimal() else 100_000)


def text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def gpus() -> list[dict[str, Any]] | None:
    """The GPUs that this process can reach; None where nothing here can say."""
    try:
        return nvidia() or amd() or None
    except Exception:  # noqa: BLE001 - a driver's library may fail in any way; the step must start
        return None


def nvidia() -> list[dict[str, Any]]:
    """Ask NVML itself: an image need not have its Python package; a divided GPU with its instances."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    if nvml.nvmlInit_v2():
        return []
    count, rows = ctypes.c_uint(), list[dict[str, Any]]()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    driver = words(nvml.nvmlSystemGetDriverVersion)
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            continue
        uuid, name = words(nvml.nvmlDeviceGetUUID, handle), words(nvml.nvmlDeviceGetName, handle)
        rows.append({"vendor": "nvidia", "index": index, "uuid": uuid, "name": name, "driver": driver})
        for number in range(instances_of(nvml, handle)):
            part = ctypes.c_void_p()
            if not nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number, ctypes.byref(part)):
                part_facts = {"uuid": words(nvml.nvmlDeviceGetUUID, part), "parent": uuid, "instance": number}
                rows.append({**rows[-1], "name": words(nvml.nvmlDeviceGetName, part), **part_facts})
    nvml.nvmlShutdown()
    return rows


def instances_of(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> int:
    mode, pending, count = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    if nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(mode), ctypes.byref(pending)) or not mode.value:
        return 0
    return 0 if nvml.nvmlDeviceGetMaxMigDeviceCount(handle, ctypes.byref(count)) else count.value


def words(function: Any, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(96)
    return "" if function(*arguments, buffer, len(buffer)) else buffer.value.decode("utf-8", "replace")


def amd() -> list[dict[str, Any]]:
    """Read the kernel's tree: the GPUs whose node this process may open."""
    rows, nodes = list[dict[str, Any]](), "/sys/class/kfd/kfd/topology/nodes"
    for node in sorted(os.listdir(nodes), key=int) if os.path.isdir(nodes) else ():
        lines = (line.split() for line in text(f"{nodes}/{node}/properties").splitlines())
        fields = {line[0]: line[1] for line in lines if len(line) == 2}
        minor = fields.get("drm_render_minor", "0")
        if minor != "0" and os.access(f"/dev/dri/renderD{minor}", os.R_OK | os.W_OK):
            device = f"/sys/class/drm/renderD{minor}/device"
            unique = int(fields.get("unique_id", "0"))
            uuid = f"GPU-{unique:016x}" if unique else f"GPU-renderD{minor}"
            mode = text(f"{device}/current_compute_partition")
            name = " ".join(filter(None, (text(f"{device}/product_name") or "AMD GPU", mode)))
            driver = text("/sys/module/amdgpu/version") or None
            rows.append({"vendor": "amd", "index": len(rows), "uuid": uuid, "name": name, "driver": driver})
    return rows


if __name__ == "__main__":
    main()
