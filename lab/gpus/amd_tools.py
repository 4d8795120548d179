"""The state of AMD GPUs by amd-smi or rocm-smi, where the kernel's own files do not tell it.

Both are Python programs that take a good part of a second: whoever asks often must look at the cost.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lab.errors import GpuError

_NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,6})?")
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_ANSWER_S, _MOST_BYTES = 20.0, 16 << 20
State = dict[str, float | None]


class AmdTools:
    """One tool, asked once for all GPUs; `reader` gives a function that reads one of them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Raises GpuError where neither tool is installed, or none answers."""
        self._env = env
        asks = {"amd-smi": _by_amd_smi, "rocm-smi": _by_rocm_smi}
        installed = [(tool, ask) for tool, ask in asks.items() if shutil.which(tool, path=env.get("PATH"))]
        if not installed:
            raise GpuError(f"neither {' nor '.join(asks)} is installed")
        reasons = []
        for tool, ask in installed:
            try:
                self._states = ask(env)
            except GpuError as error:
                reasons.append(error.problem)
                continue
            self.name, self._ask = tool, ask
            self._served: set[str] = set()
            return
        raise GpuError("; ".join(reasons))

    def reader(self, render_node: str | None) -> Callable[[], State]:
        """A function that gives one GPU's present state. Raises GpuError if the tool does not list it."""
        bdf = bus_of(render_node, self._env)
        if bdf is None or bdf not in self._states:
            raise GpuError(f"{self.name} lists no GPU at PCI address {bdf or 'unknown'}")
        nothing: State = dict.fromkeys(("sm_clock_mhz", "mem_clock_mhz", "power_w", "temperature_c"))

        def read() -> State:
            if bdf in self._served:  # its state is known from before: all are asked again
                self._served.clear()
                try:
                    self._states = self._ask(self._env)
                except GpuError:
                    self._states = {}
            self._served.add(bdf)
            return {**nothing, **self._states.get(bdf, {}), "throttle_bits": None}

        return read


def bus_of(render_node: str | None, env: Mapping[str, str]) -> str | None:
    """The PCI address of a device node's GPU, in lower case; None if the kernel does not say."""
    device = Path(env.get("LAB_SYS_ROOT") or "/sys") / f"class/drm/{Path(render_node or '-').name}/device"
    name = device.resolve().name.lower()
    return name if _BDF.fullmatch(name) else None


def _by_amd_smi(env: Mapping[str, str]) -> dict[str, State]:
    """By PCI address, from amd-smi's JSON: a list, or one under `gpu_data`, as newer versions write it."""
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


def _by_rocm_smi(env: Mapping[str, str]) -> dict[str, State]:
    """By PCI address, from rocm-smi's JSON: an object per card, whose values are texts."""
    words = ["rocm-smi", "--showbus", "--showclocks", "--showpower", "--showtemp", "--json"]
    answer = _object(_answer(words, env))
    states = {}
    for card in map(_object, answer.values()):
        bdf = str(card.get("PCI Bus", "")).lower()
        if _BDF.fullmatch(bdf):
            states[bdf] = {
                "sm_clock_mhz": _first(card, "sclk clock speed:"),
                "mem_clock_mhz": _first(card, "mclk clock speed:"),
                "power_w": _first(
                    card, "Current Socket Graphics Package Power (W)", "Average Graphics Package Power (W)"
                ),
                "temperature_c": _first(
                    card, "Temperature (Sensor junction) (C)", "Temperature (Sensor edge) (C)"
                ),
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
    """The number in `{"value": 131, "unit": "W"}`, `131`, `"131.0"` or `"(132Mhz)"`; None for `"N/A"`."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value) if abs(value) < 1e12 else None
    match = _NUMBER.search(value) if isinstance(value, str) else None
    return float(match[0]) if match else None
