"""`lab run kernels replay`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.rooms.kernels.options import RANK, SOURCE
from lab.terminal.click_types import options_of

if TYPE_CHECKING:
    from lab.core.plan import Experiment, Plan, Site
from lab.rooms.kernels.replay.plan import replay_run
from lab.rooms.kernels.replay.read import read_source


@click.command("replay")
@SOURCE
@click.option(
    "--recorded-ops",
    type=click.Path(path_type=Path),
    help="The dispatch recorder's file; found by itself in a RUN.",
)
@click.option(
    "--mode",
    type=click.Choice(["hot", "cold", "in-order"]),
    default="in-order",
    show_default=True,
    help="hot: same buffers again; cold: L2 overwritten before; in-order: the whole recording again.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1, max=1000),
    default=10,
    show_default=True,
    help="Measurements of every call.",
)
@click.option(
    "--pace",
    type=click.Choice(["host", "queue"]),
    default="host",
    show_default=True,
    help="In order: launched as the host can, or queued behind a wait so that kernels follow each other at once.",
)
@RANK
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    source: Path,
    execution_trace: Path | None,
    recorded_ops: Path | None,
    mode: str,
    repeats: int,
    pace: str,
    rank: int,
) -> Experiment:
    """Replay every op of SOURCE (a RUN or a Kineto trace), and prove that its kernels are the same.

    Prints coverage by launches and by time, the share of kernel time that replays as the same kernel, the error of
    each kernel's time, and how far replayed times add up to the recorded ones.
    """
    from lab.core.plan import Experiment

    plan = read_source(source, execution_trace, recorded_ops, rank)

    def make_plan(site: Site, root: Path) -> Plan:
        return replay_run(plan, site, mode=mode, repeats=repeats, pace=pace)

    return Experiment("kernels", make_plan, options_of(ctx))
