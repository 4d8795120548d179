"""`lab run kernels energy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.rooms.kernels.options import RANK, SOURCE
from lab.terminal.click_types import options_of

if TYPE_CHECKING:
    from lab.core.plan import Experiment, Plan, Site
    from lab.rooms.kernels.replay.args import ReplayPlan

STEP = "energy"


@click.command("energy")
@SOURCE
@click.option(
    "--window",
    "window_s",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    help="Seconds a window.",
)
@click.option(
    "--windows",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Windows of every call, interleaved.",
)
@click.option(
    "--preroll",
    "preroll_s",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Seconds of load before a window: the ramp.",
)
@click.option(
    "--idle",
    "idle_s",
    type=click.FloatRange(min=0.5),
    default=5.0,
    show_default=True,
    help="Seconds of idle, cold and with a context.",
)
@click.option(
    "--coverage",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=0.95,
    show_default=True,
    help="Share of recorded GPU time whose calls are measured; measured calls stand for the rest.",
)
@click.option(
    "--most-calls",
    type=click.IntRange(min=1),
    default=40,
    show_default=True,
    help="At most so many distinct calls.",
)
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    help="Seconds for all windows.",
)
@click.option("--no-model", is_flag=True, help="Without the model's own run: then there is no closure.")
@RANK
@click.pass_context
def energy(
    ctx: click.Context, /, source: Path, execution_trace: Path | None, no_model: bool, rank: int, **knobs: Any
) -> Experiment:
    """Measure joules per launch, per unique kernel and per token of SOURCE (a RUN or a Kineto trace), and their closure."""
    import msgspec

    from lab.core.plan import Experiment
    from lab.rooms.kernels.energy.choice import EnergyConfig
    from lab.rooms.kernels.replay.cli import read_source

    plan = read_source(source, execution_trace, None, rank)
    config = msgspec.convert({**knobs, "model_run": not no_model}, EnergyConfig)

    def make_plan(site: Site, root: Path) -> Plan:
        return energy_run(plan, config, site)

    return Experiment("kernels", make_plan, options_of(ctx))


def energy_run(plan: ReplayPlan, config: Any, site: Site) -> Plan:
    """One step on one GPU. Raises GpuError where there is none: energy is never estimated."""
    import msgspec

    from lab.core.plan import Plan
    from lab.core.step import Step
    from lab.errors import GpuError
    from lab.rooms.kernels.energy.joules import CONFIG_FILE, RAW_FILE
    from lab.rooms.kernels.replay.proof import PLAN_FILE

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
