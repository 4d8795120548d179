"""AMD GPUs by the KFD tree in /sys. LAB_SYS_ROOT and LAB_DEV_ROOT name another /sys and /dev."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab.core.gpu import Gpu


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
