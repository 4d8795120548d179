"""From SOURCE, a trace or a run, to the plan of its replay."""

from __future__ import annotations

from pathlib import Path

from lab.core.run import Run
from lab.errors import MissingError, UsageError, not_here
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.replay.calls.source import read_plan
from lab.rooms.kernels.schema import Generation
from lab.rooms.kernels.trails import Trail, read_json, trails


def read_source(
    source: Path,
    execution_trace: Path | None = None,
    recorded_ops: Path | None = None,
    rank: int = 0,
) -> ReplayPlan:
    """The plan of a trace file, or of one rank of a run. Raises MissingError, UsageError and BadDataError."""
    if not source.exists():
        raise not_here("no such run or trace", source)
    if source.is_file():
        return read_plan(source, execution_trace, recorded_ops)
    trail = _trail(source, rank)
    generation = read_json(trail.generation, Generation) if trail.generation else None
    return read_plan(
        trail.trace,
        execution_trace or trail.execution_trace,
        recorded_ops or trail.recorded_ops,
        run=str(source),
        state=generation.flags if generation else {},
        config=_config_of(source, generation),
    )


def _trail(source: Path, rank: int) -> Trail:
    by_rank = {trail.rank: trail for trail in trails(source)}
    if not by_rank:
        raise MissingError(
            "this folder holds no profile of the kernels room",
            location=source,
            fix="make one with: lab run kernels profile MODEL, or name a trace file",
        )
    if rank not in by_rank:
        ranks = ", ".join(map(str, sorted(by_rank)))
        raise UsageError(f"this run has no rank {rank}", location=source, fix=f"its ranks: {ranks}")
    return by_rank[rank]


def _config_of(source: Path, generation: Generation | None) -> dict[str, object]:
    """The configuration of the profiled run, so that an energy run can generate with the same model again."""
    config: dict[str, object] = dict(Run.open(source).manifest.config) if Run.is_run(source) else {}
    for name in ("model", "weights", "dtype", "prompt_tokens", "new_tokens", "attn"):
        if generation is not None:
            config.setdefault(name, getattr(generation, name))
    return config
