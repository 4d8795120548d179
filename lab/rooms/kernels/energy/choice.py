"""Which calls are measured and which stand in for others; and the files between workload and analysis."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import msgspec

from lab.power.windows import Window
from lab.rooms.kernels.replay.args import PLAN_FILE, ReplayPlan

ENERGY_CONFIG, ENERGY_RAW = "energy_config.json", "energy/energy_raw.json"
ENERGY_RESULT, ENERGY_TABLE = "energy.json", "tables/energy.csv"


def is_energy(folder: Path) -> bool:
    """Whether `folder` is a run of `lab run kernels energy`."""
    return (folder / ENERGY_CONFIG).is_file() and (folder / PLAN_FILE).is_file()


class EnergyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to measure, and how many calls."""

    window_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    preroll_s: Annotated[float, msgspec.Meta(ge=0)] = 1.0  # the ramp: never part of a window
    windows: Annotated[int, msgspec.Meta(ge=1)] = 3
    idle_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    coverage: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.95  # of recorded GPU time
    most_calls: Annotated[int, msgspec.Meta(ge=1)] = 40
    model_run: bool = True


class SignatureEnergy(msgspec.Struct, kw_only=True):
    """The windows of one distinct call; place is its index in the plan."""

    sig_id: str
    place: int
    windows: list[Window] = []
    buffers: int = 1
    captured: bool = False
    reason: str = ""


class RunEnergy(msgspec.Struct, kw_only=True):
    """One window of whole runs; `window.launches` counts runs."""

    subject: str = msgspec.field(name="what")  # what ran
    forwards_per_run: int
    window: Window


class RawEnergy(msgspec.Struct, kw_only=True):
    """energy_raw.json: all that was measured, before any evaluation."""

    meter: str
    config: EnergyConfig
    device_name: str = ""
    facts_before: dict[str, Any] = {}
    facts_after: dict[str, Any] = {}
    versions: dict[str, str] = {}
    idle_cold: Window | None = None
    idle_context: Window | None = None
    idle_between: list[Window] = []  # with a context, between the model's windows: a warm card leaks more
    update_period_s: float | None = None
    signatures: list[SignatureEnergy] = []
    stands_for: dict[int, int] = {}  # call that is not measured -> call that is; indices in the plan
    model: list[RunEnergy] = []
    notes: list[str] = []


def windows_of(raw: RawEnergy) -> list[Window]:
    """All windows under load: of the calls, then of the model."""
    of_calls = [window for entry in raw.signatures for window in entry.windows]
    return of_calls + [run.window for run in raw.model]


def choose(plan: ReplayPlan, config: EnergyConfig) -> tuple[list[int], dict[int, int]]:
    """The calls to measure, by recorded time until `coverage` is reached; and the stand-ins of the others.

    A call that is not measured takes the power of a measured one: one with the same op and kernels if there
    is one, otherwise the one with the nearest time per call. Its energy is that power times its own recorded
    time.
    """
    time_us = recorded_us(plan)
    order = sorted(time_us, key=lambda sig: -time_us[sig])
    wanted_us, reached_us = config.coverage * sum(time_us.values()), 0.0
    chosen: list[int] = []
    for sig in order:
        if len(chosen) >= config.most_calls or (chosen and reached_us >= wanted_us):
            break
        chosen.append(sig)
        reached_us += time_us[sig]
    kin = {_family(plan, sig): sig for sig in reversed(chosen)}
    per_call = per_call_us(plan)
    stands_for = {
        sig: kin.get(_family(plan, sig), _nearest(sig, chosen, per_call))
        for sig in order
        if sig not in chosen
    }
    return chosen, stands_for


def recorded_us(plan: ReplayPlan) -> dict[int, float]:
    """Recorded GPU time of each signature, summed over its calls."""
    sums_us: dict[int, float] = defaultdict(float)
    for call in plan.calls:
        sums_us[call.sig] += sum(call.dur_us)
    return dict(sums_us)


def per_call_us(plan: ReplayPlan) -> dict[int, float]:
    """Mean recorded GPU time of one call of each signature."""
    counts: dict[int, int] = defaultdict(int)
    for call in plan.calls:
        counts[call.sig] += 1
    return {sig: us / counts[sig] for sig, us in recorded_us(plan).items()}


def _family(plan: ReplayPlan, sig: int) -> tuple[Any, ...]:
    signature = plan.signatures[sig]
    return signature.op, signature.overload, tuple(launch.name for launch in signature.launches)


def _nearest(sig: int, chosen: list[int], per_call: dict[int, float]) -> int:
    return min(chosen, key=lambda measured: abs(per_call[measured] - per_call[sig]))
