"""read"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.rooms.kernels.replay.args import ReplayPlan


def read_source(
    source: Path, execution_trace: Path | None = None, recorded_ops: Path | None = None, rank: int = 0
) -> ReplayPlan:
    """A ReplayPlan of a trace file, or of one rank of a run. Raises MissingError and BadDataError."""
    from lab.errors import MissingError, UsageError
    from lab.rooms.kernels.replay.source import read_plan
    from lab.rooms.kernels.schema import Generation
    from lab.rooms.kernels.trails import read_json, trails

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
