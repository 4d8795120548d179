"""`lab run sweep` and `lab sweep`; `lab gemm` is in gemm/cli.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.rooms.sweep.gemm.cli import gemm
from lab.terminal.click_types import IntList, options_of

if TYPE_CHECKING:
    from lab.core.plan import Experiment

__all__ = ["gemm", "run_sweep"]


@click.command("sweep")
@click.option(
    "-c",
    "--channels",
    type=IntList(),
    default="28,42,56,70",
    show_default=True,
    help="NCCL/RCCL channel counts.",
)
@click.option(
    "-t",
    "--threads",
    type=IntList(),
    default="256,512",
    show_default=True,
    help="Threads per block of the collectives.",
)
@click.option(
    "-p",
    "--ranks",
    "--nproc",
    type=click.IntRange(min=1),
    help="Ranks on each node. [default: one per GPU; 2 without GPU]",
)
@click.option(
    "--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Hosts (with --engine slurm)."
)
@click.option(
    "-f", "--config", help="Training config: a YAML file or a preset. [default: llm with GPUs, tiny without]"
)
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one key of the training config; repeatable.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Runs of every setting: error bars need 3 or more.",
)
@click.option(
    "--order",
    type=click.Choice(["random", "given"]),
    default="random",
    show_default=True,
    help="Order of the settings within a repeat.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=2025, show_default=True, help="Seed of the random order."
)
@click.option(
    "--channels-as",
    type=click.Choice(["pin", "max"]),
    default="pin",
    show_default=True,
    help="Set MIN and MAX channels, or only MAX.",
)
@click.option(
    "--pause",
    "pause_s",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Seconds of rest before each run on GPUs.",
)
@click.option(
    "-s", "--skip-existing", is_flag=True, help="Skip settings whose traces are complete in --output-dir."
)
@click.pass_context
def run_sweep(
    ctx: click.Context,
    /,
    channels: list[int],
    threads: list[int],
    skip_existing: bool,
    overrides: tuple[str, ...],
    **knobs: object,
) -> Experiment:
    """Sweep collective channels x threads over a training run, and report what they do to its GEMMs."""
    import msgspec

    from lab.core.plan import Experiment, Plan, Site
    from lab.errors import UsageError
    from lab.rooms.sweep.config.sweep import SweepConfig
    from lab.rooms.sweep.plan import plan

    config = msgspec.convert(
        {"channels": channels, "threads": threads, "overrides": list(overrides), **knobs}, SweepConfig
    )

    if config.nodes > 1 and options_of(ctx).engine != "slurm":
        raise UsageError(
            "a sweep over several nodes needs a scheduler", fix="lab run --engine slurm sweep --nodes ..."
        )

    def make_plan(site: Site, root: Path) -> Plan:
        return plan(config, site, root, skip_existing=skip_existing)

    return Experiment(
        "sweep", make_plan, msgspec.structs.replace(options_of(ctx), skip_existing=skip_existing)
    )
