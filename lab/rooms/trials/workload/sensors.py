"""Clocks, temperature and throttling of a trial's GPUs while it runs; nothing without a GPU or NVML."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping, Sequence

from lab.core.gpu import GIVEN
from lab.errors import LabError
from lab.gpus.selection import MASKS
from lab.power.meters import NvmlMeter

PERIOD_S = 1.0
# NVML: software power cap, hardware slowdown, software and hardware thermal slowdown, power brake.
SLOWED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


class Sensors:
    """Samples once at the start, then every second until the end. Never ends a trial."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._meters = list(meters(env))
        self._samples: list[Mapping[str, float | None]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sensors:
        if self._meters:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._meters:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            for meter in self._meters:
                self._samples.append(meter.facts())
            if self._ended.wait(PERIOD_S):
                return

    def summary(self) -> dict[str, float | bool | None]:
        return summary(self._samples)


def summary(samples: Sequence[Mapping[str, float | None]]) -> dict[str, float | bool | None]:
    """The highest temperature, the median clock, and whether a GPU was slowed; None: not reported."""

    def known(name: str) -> list[float]:
        return [value for one in samples if (value := one.get(name)) is not None]

    clocks, heat, bits = (known(name) for name in ("sm_clock_mhz", "temperature_c", "throttle_bits"))
    return {
        "temperature_c": max(heat, default=None),
        "sm_clock_mhz": statistics.median(clocks) if clocks else None,
        "throttled": any(int(bit) & SLOWED for bit in bits) if bits else None,
    }


def _uuids(env: Mapping[str, str]) -> list[str]:
    words = next((env[name].split(",") for name in (GIVEN, *MASKS) if env.get(name)), [])
    return [word for word in words if word.startswith(("GPU-", "MIG-"))]


def meters(env: Mapping[str, str]) -> list[NvmlMeter]:
    """Open meters of the GPUs that the trial is given by UUID."""
    try:
        return [NvmlMeter(uuid) for uuid in _uuids(env)]
    except LabError:
        return []
