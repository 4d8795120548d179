"""The plan of an energy run: one step on one GPU."""

from __future__ import annotations

import msgspec

from lab.core.plan import Plan, Site
from lab.core.step import Step
from lab.errors import GpuError
from lab.rooms.kernels.energy.choice import CONFIG_FILE, RAW_FILE, EnergyConfig
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.replay.files import PLAN_FILE

STEP = "energy"


def energy_run(plan: ReplayPlan, config: EnergyConfig, site: Site) -> Plan:
    """Raises GpuError without a GPU: energy is never estimated."""
    if not site.gpus:
        raise GpuError(
            "energy is measured on a GPU, and there is none here",
            fix="run on a machine with a GPU; `lab doctor` lists the GPUs of this one",
        )
    flags = f"--plan {PLAN_FILE} --config {CONFIG_FILE} --out {STEP}"
    step = Step(
        name=STEP,
        folder=STEP,
        num_gpus=1,
        expects=(RAW_FILE,),
        argv=("python", "-m", "lab.rooms.kernels.workload.energy", *flags.split()),
    )
    source = plan.origin.run or plan.origin.trace
    return Plan(
        steps=(step,),
        config={"what": "energy", **msgspec.to_builtins(config), "source": source},
        notes=plan.notes,
        inputs={
            PLAN_FILE: msgspec.json.encode(plan).decode(),
            CONFIG_FILE: msgspec.json.encode(config).decode(),
        },
    )
