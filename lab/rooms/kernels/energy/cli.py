"""`lab run kernels energy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.rooms.kernels.options import RANK, SOURCE
from lab.terminal.click_types import options_of

if TYPE_CHECKING:
    from lab.core.plan import Experiment, Plan, Site
from lab.rooms.kernels.energy.plan import energy_run


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
    from lab.rooms.kernels.replay.read import read_source

    plan = read_source(source, execution_trace, None, rank)
    config = msgspec.convert({**knobs, "model_run": not no_model}, EnergyConfig)

    def make_plan(site: Site, root: Path) -> Plan:
        return energy_run(plan, config, site)

    return Experiment("kernels", make_plan, options_of(ctx))
