"""main"""

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
from lab.gpus.meters import meter_of
from lab.rooms.kernels.energy.choice import EnergyConfig, RawEnergy
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.workload.energy.measurement import Measurement, at_rest, save, watts_text
from lab.rooms.kernels.workload.replay.machine import progress as say
from lab.rooms.kernels.workload.replay.machine import read_replay_plan, versions
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
    """Everything in turn. Raises GpuError without a GPU, without a meter, or where others share it."""
    if torch.cuda.device_count() == 0:
        raise GpuError(
            f"torch {torch.__version__} sees no GPU: there is no energy to measure",
            fix="run where the GPU is",
        )
    vendor = "amd" if torch.version.hip else "nvidia"
    meter = meter_of(vendor, uuid_of_first(vendor))
    write_atomic(
        out / "environment.json", msgspec.json.encode({"versions": versions(), "meter": meter.facts()})
    )
    raw = RawEnergy(meter=meter.name, config=config, facts_before=meter.facts(), versions=versions())
    raw.idle_cold = at_rest(meter, config.idle_s)
    torch.zeros(1, device="cuda").add_(1)
    torch.cuda.synchronize()
    if reason := meter.refusal():
        raise GpuError(
            f"energy would not be of this program alone: {reason}", fix="take a whole GPU for yourself"
        )
    time.sleep(1.0)
    raw.idle_context = at_rest(meter, config.idle_s)
    raw.device_name = torch.cuda.get_device_properties(0).name
    say(f"idle {watts_text(raw.idle_cold)} W cold, {watts_text(raw.idle_context)} W with a context")
    with torch.no_grad(), restored(plan.state):
        Measurement(plan, config, meter, raw, out).all()
    raw.facts_after = meter.facts()
    save(raw, out)
    return raw


def uuid_of_first(vendor: str) -> str:
    """UUID of CUDA device 0, from the driver's list: asking torch would create a context."""
    if vendor != "nvidia":
        return ""
    gpus = [gpu for gpu in discover() if gpu.vendor == "nvidia"]
    if not gpus:
        raise GpuError("the driver lists no GPU, though torch sees one", fix="see `lab doctor`")
    return gpus[0].uuid
