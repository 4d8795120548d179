"""`lab run kernels replay`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.rooms.kernels.options import RANK, SOURCE
from lab.terminal.click_types import options_of

if TYPE_CHECKING:
    from lab.core.plan import Experiment, Plan, Site
    from lab.core.step import Step
    from lab.rooms.kernels.replay.args import ReplayPlan

STEP = "replay"


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


def read_source(
    source: Path, execution_trace: Path | None = None, recorded_ops: Path | None = None, rank: int = 0
) -> ReplayPlan:
    """A ReplayPlan of a trace file, or of one rank of a run. Raises MissingError and BadDataError."""
    from lab.errors import MissingError, UsageError
    from lab.rooms.kernels.replay.source import read_plan
    from lab.rooms.kernels.schema import Generation, read_json, trails

    if not source.exists():
        raise MissingError("there is no such run or trace", where=source)
    if source.is_file():
        return read_plan(source, execution_trace, recorded_ops)
    found = {trail.rank: trail for trail in trails(source)}
    if not found:
        raise MissingError(
            "this folder holds no profile of the kernels room",
            where=source,
            fix="make one with: lab run kernels profile MODEL, or name a trace file",
        )
    if rank not in found:
        raise UsageError(
            f"this run has no rank {rank}",
            where=source,
            fix=f"its ranks: {', '.join(map(str, sorted(found)))}",
        )
    trail = found[rank]
    said = read_json(trail.generation, Generation) if trail.generation else None
    return read_plan(
        trail.trace,
        execution_trace or trail.execution_trace,
        recorded_ops or trail.recorded_ops,
        run=str(source),
        state=said.flags if said else {},
        config=_config_of(source, said),
    )


def _config_of(source: Path, said: object) -> dict[str, object]:
    """What the profiled run was asked for, so that energy can run the same model again."""
    from lab.core.run import Run

    config: dict[str, object] = dict(Run.open(source).manifest.config) if Run.is_run(source) else {}
    for name in ("model", "weights", "dtype", "prompt_tokens", "new_tokens", "attn"):
        if said is not None:
            config.setdefault(name, getattr(said, name))
    return config


def replay_run(plan: ReplayPlan, site: Site, *, mode: str, repeats: int, pace: str) -> Plan:
    """One step; the workload reads nothing but the plan that lies in the run folder."""
    import msgspec

    from lab.core.plan import Plan
    from lab.rooms.kernels.replay.proof import PLAN_FILE

    config = {
        "what": "replay",
        "mode": mode,
        "repeats": repeats,
        "pace": pace,
        "source": plan.origin.run or plan.origin.trace,
    }
    return Plan(
        steps=(replay_step(site, mode=mode, repeats=repeats, pace=pace),),
        config=config,
        inputs={PLAN_FILE: msgspec.json.encode(plan).decode()},
        notes=(*plan.notes, *_notes(plan, site)),
    )


def replay_step(site: Site, *, mode: str, repeats: int, pace: str) -> Step:
    from lab.core.step import Step
    from lab.rooms.kernels.replay.proof import PLAN_FILE, RAW_FILE

    return Step(
        name=STEP,
        folder=STEP,
        num_gpus=1 if site.gpus else 0,
        expects=(RAW_FILE,),
        labels={"mode": mode},
        argv=(
            "python",
            "-m",
            "lab.rooms.kernels.workload.replay",
            "--plan",
            PLAN_FILE,
            "--out",
            STEP,
            "--mode",
            mode,
            "--repeats",
            str(repeats),
            "--pace",
            pace,
        ),
    )


def _notes(plan: ReplayPlan, site: Site) -> list[str]:
    if site.gpus or not plan.origin.has_kernels:
        return []
    return ["no GPU here: the replay rebuilds arguments and calls the ops on the CPU; it proves no kernel"]
