"""AMD GPUs by the KFD tree in /sys. LAB_SYS_ROOT and LAB_DEV_ROOT name another /sys and /dev."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lab.core.gpu import Gpu
from lab.errors import GpuError


def amd_gpus(env: Mapping[str, str]) -> list[Gpu]:
    """AMD GPUs from the KFD topology; a node whose drm_render_minor is 0 is a CPU."""
    sys_root, dev_root = Path(env.get("LAB_SYS_ROOT") or "/sys"), Path(env.get("LAB_DEV_ROOT") or "/dev")
    nodes = sorted((sys_root / "class/kfd/kfd/topology/nodes").glob("*"), key=lambda p: (len(p.name), p.name))
    gpus: list[Gpu] = []
    for node in nodes:
        properties = _properties(node / "properties")
        minor = properties.get("drm_render_minor", 0)
        if minor <= 0:
            continue
        gpus.append(_gpu(len(gpus), minor, properties, sys_root, dev_root))
    return gpus


def _gpu(index: int, minor: int, properties: dict[str, int], sys_root: Path, dev_root: Path) -> Gpu:
    device = sys_root / f"class/drm/renderD{minor}/device"
    version = properties.get(
        "gfx_target_version", 0
    )  # 90402 is gfx942: two digits each of minor and stepping
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


def amd_state(render_node: str | None, env: Mapping[str, str]) -> Callable[[], dict[str, float | None]]:
    """A function that reads a GPU's present state (lab.gpus.meters.STATE) from the kernel's hwmon files.

    Raises GpuError if there are none. freq1 is the shader clock in Hz, freq2 the memory's, power1 in uW,
    temp2 the hottest spot (temp1: the edge) in mC; hwmon has no reasons for a lower clock.
    """
    device = Path(env.get("LAB_SYS_ROOT", "/sys")) / f"class/drm/{Path(render_node or '-').name}/device"
    folder = next(iter(sorted((device / "hwmon").glob("hwmon*"))), None)
    if folder is None:
        raise GpuError("no hwmon files: clocks, power and temperature are unknown", location=device)

    def value(scale: float, *names: str) -> float | None:
        reading = next((text for name in names if (text := _read(folder / name))), "")
        return int(reading) / scale if reading.lstrip("-").isdigit() else None

    def read() -> dict[str, float | None]:
        return {
            "sm_clock_mhz": value(1e6, "freq1_input"),
            "mem_clock_mhz": value(1e6, "freq2_input"),
            "power_w": value(1e6, "power1_input", "power1_average"),
            "temperature_c": value(1e3, "temp2_input", "temp1_input"),
            "throttle_bits": None,
        }

    return read


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
