"""`lab run kernels replay`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.rooms.kernels.options import RANK, SOURCE
from lab.terminal.options import choice, option, options_of

if TYPE_CHECKING:
    from lab.core.plan import Experiment, Plan, Site


@click.command("replay")
@SOURCE
@click.option(
    "--recorded-ops",
    type=click.Path(path_type=Path),
    help="The dispatch recorder's file; found automatically in a RUN.",
)
@click.option(
    "--mode",
    type=click.Choice(["hot", "cold", "in-order"]),
    default="in-order",
    show_default=True,
    help="hot: same buffers again; cold: L2 overwritten before; in-order: the whole recording again.",
)
@option(
    "--repeats",
    type=click.IntRange(min=1, max=1000),
    default=10,
    help="Measurements of every call.",
)
@choice(
    "--pace",
    "host queue",
    "For in-order. host: launched as fast as the host can; queue: queued behind a wait, so that kernels "
    "run back to back.",
)
@RANK
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    source: Path,
    execution_trace: Path | None,
    recorded_ops: Path | None,
    rank: int,
    **knobs: Any,
) -> Experiment:
    """Replay every op of SOURCE (a RUN or a Kineto trace), and prove that its kernels are the same.

    Prints coverage by launches and by time, the share of kernel time that replays as the same kernel, the
    error of each kernel's time, and how far the sum of replayed times is off the recorded one.
    """
    from lab.core.plan import Experiment
    from lab.rooms.kernels.replay.plan import ReplayOptions, replay_run
    from lab.rooms.kernels.replay.read import read_source

    plan = read_source(source, execution_trace, recorded_ops, rank)

    def make_plan(site: Site, root: Path) -> Plan:
        return replay_run(plan, ReplayOptions(**knobs), site)

    return Experiment("kernels", make_plan, options_of(ctx))
