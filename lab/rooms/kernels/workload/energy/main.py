"""Energy of single launches and of the whole model, on the GPU.

    python -m lab.rooms.kernels.workload.energy.main --plan replay_plan.json --config energy.json --out DIR

Idle is measured before the first CUDA call and again with a context. Then the model itself runs, or the
recording in order if the model cannot be built. Each distinct call repeats from a CUDA graph (a deep queue if
it cannot be captured) while a thread polls the meter; windows run from one step of the counter to another and
are interleaved over calls, so that a drift of the card affects all of them. `energy_raw.json` is written
after every round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from lab.core.files import write_atomic
from lab.errors import GpuError
from lab.gpus.discover import discover
from lab.power.meters import meter_of
from lab.power.windows import Window, watts
from lab.rooms.kernels.energy.choice import EnergyConfig, RawEnergy
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.workload.energy.measurement import Measurement, at_rest, save
from lab.rooms.kernels.workload.replay.machine import known_versions, progress, read_replay_plan
from lab.rooms.kernels.workload.torch_switches import restored
from lab.workload.start import read_config, start


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="lab.rooms.kernels.workload.energy", description="Energy of recorded ops."
    )
    parser.add_argument("--plan", required=True, type=Path)
    parser.add_argument("--config", required=True, type=Path)
    args, _ = start(parser, argv)
    measure(read_replay_plan(args.plan), read_config(args.config, EnergyConfig), args.out)


def measure(plan: ReplayPlan, config: EnergyConfig, out: Path) -> RawEnergy:
    """Measure everything. Raises GpuError without a GPU, without a meter, or if others use the GPU."""
    if torch.cuda.device_count() == 0:
        raise GpuError(
            f"torch {torch.__version__} sees no GPU, so energy cannot be measured",
            fix="run on a machine with a GPU",
        )
    vendor = "amd" if torch.version.hip else "nvidia"
    meter = meter_of(vendor, uuid_of_first(vendor))
    write_atomic(
        out / "environment.json", msgspec.json.encode({"versions": known_versions(), "meter": meter.facts()})
    )
    raw = RawEnergy(meter=meter.name, config=config, facts_before=meter.facts(), versions=known_versions())
    raw.idle_cold = at_rest(meter, config.idle_s)
    torch.zeros(1, device="cuda").add_(1)
    torch.cuda.synchronize()
    if reason := meter.refusal():
        raise GpuError(f"the meter would include other programs: {reason}", fix="use a whole, idle GPU")
    time.sleep(1.0)
    raw.idle_context = at_rest(meter, config.idle_s)
    raw.device_name = torch.cuda.get_device_properties(0).name
    progress(f"idle {_watts(raw.idle_cold)} cold, {_watts(raw.idle_context)} with a context")
    with torch.no_grad(), restored(plan.state) as unknown:
        raw.notes += [f"this torch has no switch {name}" for name in unknown]
        Measurement(plan, config, meter, raw, out).all()
    raw.facts_after = meter.facts()
    save(raw, out)
    return raw


def _watts(measured: Window) -> str:
    power = watts(measured)
    return "unknown" if power is None else f"{power:.1f} W"


def uuid_of_first(vendor: str) -> str:
    """UUID of CUDA device 0, from the driver's list: asking torch would create a context."""
    if vendor != "nvidia":
        return ""
    gpus = [gpu for gpu in discover() if gpu.vendor == "nvidia"]
    if not gpus:
        raise GpuError("the driver lists no GPU, but torch sees one", fix="see `lab doctor`")
    return gpus[0].uuid


if __name__ == "__main__":
    main()
