"""Which GPUs this machine has, without torch: nvidia-smi or NVML for NVIDIA, the KFD tree in /sys for AMD.

LAB_SYS_ROOT and LAB_DEV_ROOT point the AMD discovery at another /sys and /dev (tests, containers).
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.core.gpu import Gpu
from lab.errors import GpuError, UsageError

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


def discover(env: Mapping[str, str] | None = None) -> list[Gpu]:
    """The GPUs this process may use, [] where there is none. NVIDIA first: an AMD iGPU may sit beside it.

    CUDA_VISIBLE_DEVICES and ROCR_/HIP_VISIBLE_DEVICES, set by a scheduler, narrow the list.
    """
    env = os.environ if env is None else env
    nvidia = _visible(_nvidia(), env.get("CUDA_VISIBLE_DEVICES"))
    return nvidia or _visible(_amd(env), env.get("ROCR_VISIBLE_DEVICES", env.get("HIP_VISIBLE_DEVICES")))


def select(gpus: Sequence[Gpu], spec: str) -> list[Gpu]:
    """Pick GPUs by `all`, `none`, a count `N`, indices `0,2` or `0-3`, or UUIDs (a unique beginning is enough).

    Raises UsageError when the spec cannot be read, GpuError when a GPU it names is not here.
    """
    wanted = parse_spec(spec)
    if wanted == "all":
        return list(gpus)
    if isinstance(wanted, int):
        if wanted > len(gpus):
            raise GpuError(
                f"{wanted} GPUs asked for, {len(gpus)} here",
                where=_present(gpus),
                fix="ask for fewer with --gpus",
            )
        return list(gpus[:wanted])
    return [_find(gpus, item) for item in wanted]


def parse_spec(spec: str) -> str | int | list[int | str]:
    """Read a --gpus value: "all", a count, or a list of indices and UUIDs without repeats."""
    text = spec.strip()
    if text in ("all", "none"):
        return "all" if text == "all" else []
    if text.isdigit():
        if int(text) == 0:
            raise UsageError(
                "--gpus 0 asks for zero GPUs", fix="write --gpus none, or --gpus 0-0 for GPU number 0"
            )
        return int(text)
    items: list[int | str] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        items.extend(_parse_part(part, spec))
    if not items or len(set(items)) != len(items):
        raise UsageError(f"--gpus {spec!r} names {'a GPU twice' if items else 'no GPU'}", fix=_SPEC_HELP)
    return items


_SPEC_HELP = "use all, none, a count (4), indices (0,2 or 0-3), or UUIDs"


def _parse_part(part: str, spec: str) -> list[int | str]:
    if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first > 1023:
            raise UsageError(f"--gpus {spec!r}: {part!r} is no range", fix=_SPEC_HELP)
        return list(range(first, last + 1))
    if re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z/-]+", part):
        return [part]
    raise UsageError(f"--gpus {spec!r}: cannot read {part!r}", fix=_SPEC_HELP)


def placeholders(vendor: str, spec: str, default: int) -> list[Gpu]:
    """Stand-ins for a dry run on a machine without these GPUs; their names say that they are not resolved."""
    wanted = parse_spec(spec)
    if wanted == "all" or isinstance(wanted, int):
        wanted = list(range(wanted if isinstance(wanted, int) else default))
    return [
        Gpu(
            vendor=vendor,
            index=i if isinstance(i, int) else n,
            name="not resolved on this machine",
            uuid=i if isinstance(i, str) else f"<uuid of GPU {i}>",
            render_node=f"/dev/dri/<render node of GPU {i}>" if vendor == "amd" else None,
        )
        for n, i in enumerate(wanted)
    ]


def visible_env(gpus: Sequence[Gpu], vendor: str) -> dict[str, str]:
    """Environment that shows a plain process these GPUs and no others."""
    if vendor == "amd":
        return {"ROCR_VISIBLE_DEVICES": ",".join(str(gpu.index) for gpu in gpus)}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)}


def _find(gpus: Sequence[Gpu], item: int | str) -> Gpu:
    hits = [g for g in gpus if (g.index == item if isinstance(item, int) else g.uuid.startswith(item))]
    if len(hits) == 1:
        return hits[0]
    kind = "no GPU" if not hits else "more than one GPU"
    raise GpuError(
        f"{kind} here answers to {item!r}", where=_present(gpus), fix="see `lab doctor` for the GPUs present"
    )


def _present(gpus: Sequence[Gpu]) -> str:
    return "present: " + (", ".join(f"{g.index} {g.name} {g.uuid}" for g in gpus) or "none")


def _visible(gpus: list[Gpu], mask: str | None) -> list[Gpu]:
    """What a scheduler's mask leaves, in the mask's order. An unreadable entry ends the list, as CUDA does."""
    if mask is None or not gpus:
        return gpus
    kept: list[Gpu] = []
    for entry in (part.strip() for part in mask.split(",")):
        hit = next((g for g in gpus if entry and (str(g.index) == entry or g.uuid.startswith(entry))), None)
        if hit is None:
            break
        kept.append(hit)
    return kept


def _nvidia() -> list[Gpu]:
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
    """The same through NVML, for containers that lack nvidia-smi. Needs the package nvidia-ml-py."""
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


def _amd(env: Mapping[str, str]) -> list[Gpu]:
    """AMD GPUs from the KFD topology; a node whose drm_render_minor is 0 is a CPU."""
    sys_root, dev_root = Path(env.get("LAB_SYS_ROOT", "/sys")), Path(env.get("LAB_DEV_ROOT", "/dev"))
    nodes = sorted((sys_root / "class/kfd/kfd/topology/nodes").glob("*"), key=lambda p: (len(p.name), p.name))
    gpus: list[Gpu] = []
    for node in nodes:
        properties = _properties(node / "properties")
        minor = properties.get("drm_render_minor", 0)
        if minor <= 0:
            continue
        gpus.append(_amd_gpu(len(gpus), minor, properties, sys_root, dev_root))
    return gpus


def _amd_gpu(index: int, minor: int, properties: dict[str, int], sys_root: Path, dev_root: Path) -> Gpu:
    device = sys_root / f"class/drm/renderD{minor}/device"
    version = properties.get(
        "gfx_target_version", 0
    )  # 90402 is gfx942: major, minor, stepping in two digits each
    arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else None
    memory, power = _read(device / "mem_info_vram_total"), _read_first(device / "hwmon", "hwmon*/power1_cap")
    unique = properties.get("unique_id", 0)
    return Gpu(
        vendor="amd",
        index=index,
        uuid=f"GPU-{unique:016x}" if unique else f"GPU-renderD{minor}",
        arch=arch,
        name=_read(device / "product_name") or arch or "AMD GPU",
        driver=_read(sys_root / "module/amdgpu/version"),
        mem_bytes=int(memory) if memory and memory.isdigit() else None,
        power_limit_w=int(power) / 1e6 if power and power.isdigit() else None,
        render_node=str(dev_root / f"dri/renderD{minor}"),
    )


def _properties(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in (_read(path) or "").splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _read_first(folder: Path, pattern: str) -> str | None:
    return next((text for path in sorted(folder.glob(pattern)) if (text := _read(path))), None)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]", "[Not Supported]"
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
