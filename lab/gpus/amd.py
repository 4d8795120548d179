"""AMD GPUs by the KFD tree in /sys, their state by hwmon or amd-smi.

LAB_SYS_ROOT and LAB_DEV_ROOT name another /sys and /dev.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lab.core.gpu import Gpu
from lab.errors import GpuError

_NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,6})?")
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_ANSWER_S, _MOST_BYTES = 20.0, 16 << 20
State = dict[str, float | None]


def amd_gpus(env: Mapping[str, str], *, with_nodes: bool = False) -> list[Gpu]:
    """AMD GPUs from the KFD topology; a node whose drm_render_minor is 0 is a CPU.

    with_nodes: only those with a device node here, because a container's /sys shows all GPUs of its host.
    """
    sys_root, dev_root = Path(env.get("LAB_SYS_ROOT") or "/sys"), Path(env.get("LAB_DEV_ROOT") or "/dev")
    nodes = sorted((sys_root / "class/kfd/kfd/topology/nodes").glob("*"), key=lambda p: (len(p.name), p.name))
    gpus: list[Gpu] = []
    for node in nodes:
        properties = _properties(node / "properties")
        minor = properties.get("drm_render_minor", 0)
        if minor <= 0 or (with_nodes and not (dev_root / f"dri/renderD{minor}").exists()):
            continue
        gpus.append(_gpu(len(gpus), minor, properties, sys_root, dev_root))
    return _partitioned(gpus)


def _partitioned(gpus: list[Gpu]) -> list[Gpu]:
    """Name the parts of a GPU that is divided (an MI300X in CPX): they share its unique id, not its lease."""
    uuids = [gpu.uuid for gpu in gpus]
    parts = []
    for index, gpu in enumerate(gpus):
        if uuids.count(gpu.uuid) > 1:
            number = uuids[:index].count(gpu.uuid)
            name = f"{gpu.name} partition {number}"
            gpu = msgspec.structs.replace(gpu, uuid=f"{gpu.uuid}-{number}", name=name, parent=gpu.uuid)
        parts.append(gpu)
    return parts


def _gpu(index: int, minor: int, properties: dict[str, int], sys_root: Path, dev_root: Path) -> Gpu:
    device = sys_root / f"class/drm/renderD{minor}/device"
    # 90402 is gfx942: two digits each of minor and stepping.
    version = properties.get("gfx_target_version", 0)
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


def device_gids(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """The numeric groups that may open these GPUs' nodes. Names would be looked up in the image, and fail."""
    nodes = [Path(gpu.render_node) for gpu in gpus if gpu.render_node]
    if not nodes:
        return ()
    kfd = nodes[0].parent.parent / "kfd"
    present = [node for node in [kfd, *nodes] if node.exists()]
    return tuple(sorted({str(node.stat().st_gid) for node in present})) or ("<gid of /dev/kfd>",)


def amd_state(render_node: str | None, env: Mapping[str, str]) -> Callable[[], State]:
    """A function that reads a GPU's present state (lab.power.meters.STATE) from the kernel's hwmon files.

    Raises GpuError if there are none. freq1 is the shader clock in Hz, freq2 the memory's, power1 in uW,
    temp2 the hottest spot (temp1: the edge) in mC; hwmon has no reasons for a lower clock.
    """
    device = _device(render_node, env)
    folder = next(iter(sorted((device / "hwmon").glob("hwmon*"))), None)
    if folder is None:
        raise GpuError("no hwmon files: clocks, power and temperature are unknown", location=device)

    def value(scale: float, *names: str) -> float | None:
        reading = next((text for name in names if (text := _read(folder / name))), "")
        return int(reading) / scale if reading.lstrip("-").isdigit() else None

    def read() -> State:
        return {
            "sm_clock_mhz": value(1e6, "freq1_input"),
            "mem_clock_mhz": value(1e6, "freq2_input"),
            "power_w": value(1e6, "power1_input", "power1_average"),
            "temperature_c": value(1e3, "temp2_input", "temp1_input"),
            "throttle_bits": None,
        }

    return read


class AmdSmi:
    """amd-smi, asked once for all GPUs; `reader` gives a function that reads one of them.

    It is a Python program that takes a good part of a second: whoever asks often must look at the cost.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        """Raises GpuError where it is not installed, or does not answer."""
        self._env = env
        if shutil.which("amd-smi", path=env.get("PATH")) is None:
            raise GpuError("amd-smi is not installed")
        self._states = _states(env)
        self._served: set[str] = set()

    def reader(self, render_node: str | None) -> Callable[[], State]:
        """A function that gives one GPU's present state. Raises GpuError if the tool does not list it."""
        bdf = bus_of(render_node, self._env)
        if bdf is None or bdf not in self._states:
            raise GpuError(f"amd-smi lists no GPU at PCI address {bdf or 'unknown'}")
        nothing: State = dict.fromkeys(("sm_clock_mhz", "mem_clock_mhz", "power_w", "temperature_c"))

        def read() -> State:
            if bdf in self._served:  # its state is known from before: all are asked again
                self._served.clear()
                try:
                    self._states = _states(self._env)
                except GpuError:
                    self._states = {}
            self._served.add(bdf)
            return {**nothing, **self._states.get(bdf, {}), "throttle_bits": None}

        return read


def bus_of(render_node: str | None, env: Mapping[str, str]) -> str | None:
    """The PCI address of a device node's GPU, in lower case; None if the kernel does not say."""
    name = _device(render_node, env).resolve().name.lower()
    return name if _BDF.fullmatch(name) else None


def _states(env: Mapping[str, str]) -> dict[str, State]:
    """States by PCI address, from amd-smi's JSON: a list, under `gpu_data` in newer versions."""
    listed = _rows(_answer(["amd-smi", "list", "--json"], env))
    metrics = ["amd-smi", "metric", "--clock", "--power", "--temperature", "--json"]
    address = {row.get("gpu"): str(row.get("bdf", "")).lower() for row in listed}
    states = {}
    for row in _rows(_answer(metrics, env)):
        bdf = address.get(row.get("gpu"), "")
        if _BDF.fullmatch(bdf):
            clock, power, heat = (_object(row.get(name)) for name in ("clock", "power", "temperature"))
            states[bdf] = {
                "sm_clock_mhz": _clock(clock, "gfx"),
                "mem_clock_mhz": _clock(clock, "mem"),
                "power_w": _first(power, "socket_power", "current_socket_power", "average_socket_power"),
                "temperature_c": _first(heat, "hotspot", "junction", "edge"),
            }
    return states


def _answer(words: list[str], env: Mapping[str, str]) -> Any:
    """A tool's JSON, behind whatever it warns of before. Raises GpuError without one."""
    try:
        process = subprocess.run(
            words, capture_output=True, timeout=_ANSWER_S, check=True, env=dict(env), stdin=subprocess.DEVNULL
        )
        text = process.stdout[:_MOST_BYTES].decode("utf-8", "replace")
        begin = min((offset for mark in "[{" if (offset := text.find(mark)) >= 0), default=0)
        return json.loads(text[begin:])
    except (OSError, subprocess.SubprocessError) as error:
        raise GpuError(f"{words[0]} failed: {type(error).__name__}") from error
    except (ValueError, RecursionError) as error:
        raise GpuError(f"the answer of {words[0]} is not JSON") from error


def _device(render_node: str | None, env: Mapping[str, str]) -> Path:
    """A GPU's folder in /sys, by its device node."""
    return Path(env.get("LAB_SYS_ROOT") or "/sys") / f"class/drm/{Path(render_node or '-').name}/device"


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


def _rows(answer: Any) -> list[dict[str, Any]]:
    rows = answer.get("gpu_data") if isinstance(answer, dict) else answer
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _clock(clocks: dict[str, Any], kind: str) -> float | None:
    """The median over the parts of a GPU (`gfx_0`, `gfx_1`, ...): each die of an MI300 has its own clock."""
    parts = [
        _number(_object(part).get("clk")) for name, part in clocks.items() if name.startswith(f"{kind}_")
    ]
    clocks_mhz = [value for value in parts if value is not None]
    return statistics.median(clocks_mhz) if clocks_mhz else None


def _first(values: dict[str, Any], *names: str) -> float | None:
    return next((number for name in names if (number := _number(values.get(name))) is not None), None)


def _number(value: Any) -> float | None:
    """The number in `{"value": 131, "unit": "W"}`, `131` or `"131 W"`; None for `"N/A"`."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value) if abs(value) < 1e12 else None
    match = _NUMBER.search(value) if isinstance(value, str) else None
    return float(match[0]) if match else None
