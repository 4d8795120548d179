"""plan"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.core.plan import Plan, Site
    from lab.rooms.kernels.replay.args import ReplayPlan


STEP = "energy"


def energy_run(plan: ReplayPlan, config: Any, site: Site) -> Plan:
    """One step on one GPU. Raises GpuError where there is none: energy is never estimated."""
    import msgspec

    from lab.core.plan import Plan
    from lab.core.step import Step
    from lab.errors import GpuError
    from lab.rooms.kernels.energy.files import CONFIG_FILE, RAW_FILE
    from lab.rooms.kernels.replay.files import PLAN_FILE

    if not site.gpus:
        raise GpuError(
            "energy is measured on a GPU, and there is none here",
            fix="run where the GPU is; `lab doctor` shows what is here",
        )
    step = Step(
        name=STEP,
        folder=STEP,
        num_gpus=1,
        expects=(RAW_FILE,),
        argv=(
            "python",
            "-m",
            "lab.rooms.kernels.workload.energy",
            "--plan",
            PLAN_FILE,
            "--config",
            CONFIG_FILE,
            "--out",
            STEP,
        ),
    )
    said = msgspec.to_builtins(config)
    return Plan(
        steps=(step,),
        config={"what": "energy", **said, "source": plan.origin.run or plan.origin.trace},
        notes=plan.notes,
        inputs={
            PLAN_FILE: msgspec.json.encode(plan).decode(),
            CONFIG_FILE: msgspec.json.encode(config).decode(),
        },
    )
