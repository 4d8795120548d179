"""`lab run kernels energy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.rooms.kernels.options import RANK, SOURCE
from lab.terminal.options import option, options_of

if TYPE_CHECKING:
    from lab.core.plan import Experiment, Plan, Site


@click.command("energy")
@SOURCE
@option("--window", "window_s", type=click.FloatRange(min=0.1), default=5.0, help="Seconds per window.")
@option("--windows", type=click.IntRange(min=1), default=3, help="Windows of every call, interleaved.")
@option(
    "--preroll",
    "preroll_s",
    type=click.FloatRange(min=0),
    default=1.0,
    help="Seconds of load before a window: the ramp.",
)
@option(
    "--idle",
    "idle_s",
    type=click.FloatRange(min=0.5),
    default=5.0,
    help="Seconds of idle, cold and with a context.",
)
@option(
    "--coverage",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=0.95,
    help="Share of recorded GPU time whose calls are measured; measured calls stand in for the rest.",
)
@option(
    "--most-calls", type=click.IntRange(min=1), default=40, help="Measure at most this many distinct calls."
)
@option("--budget", "budget_s", type=click.FloatRange(min=1), default=3600.0, help="Seconds for all windows.")
@click.option("--no-model", is_flag=True, help="Skip the model's own run; without it there is no closure.")
@RANK
@click.pass_context
def energy(
    ctx: click.Context, /, source: Path, execution_trace: Path | None, no_model: bool, rank: int, **knobs: Any
) -> Experiment:
    """Measure joules per launch, per distinct call and per token of SOURCE (a RUN or a Kineto trace).

    Also measures the model's own runs, and compares the sum of the parts with them.
    """
    import msgspec

    from lab.core.plan import Experiment
    from lab.rooms.kernels.energy.choice import EnergyConfig
    from lab.rooms.kernels.energy.plan import energy_run
    from lab.rooms.kernels.replay.read import read_source

    plan = read_source(source, execution_trace, None, rank)
    config = msgspec.convert({**knobs, "model_run": not no_model}, EnergyConfig)

    def make_plan(site: Site, root: Path) -> Plan:
        return energy_run(plan, config, site)

    return Experiment("kernels", make_plan, options_of(ctx))
