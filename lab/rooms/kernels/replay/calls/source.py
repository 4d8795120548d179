"""From recordings to a ReplayPlan: which op owns each launch, and with what arguments it was called.

Owners, forwards and recorded calls are the catalogue's (`catalogue.rank`): one reading of a recording, so a
profile and its replay count the same launches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.run import Run
from lab.errors import BadDataError, MissingError, UsageError, not_here
from lab.recordings.load import load_torch_trace
from lab.rooms.kernels.catalogue.rank import RankData, read_trail
from lab.rooms.kernels.replay.args import Call, Forward, Origin, ReplayPlan
from lab.rooms.kernels.replay.arguments.execution_trace import read_execution_trace
from lab.rooms.kernels.replay.calls.signatures import SignatureBook
from lab.rooms.kernels.schema import Generation
from lab.rooms.kernels.trails import Trail, read_json, trails
from lab.stats.intervals import spans, total


def read_plan(
    trace: Path,
    execution_trace: Path | None = None,
    recorded_ops: Path | None = None,
    *,
    run: str = "",
    state: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> ReplayPlan:
    """Everything a replay of `trace` needs. Raises MissingError and BadDataError for unreadable files."""
    rank = _read_rank(trace, recorded_ops)
    nodes = read_execution_trace(execution_trace) if execution_trace else {}
    book = SignatureBook(rank, nodes)
    book.add_launches() if rank.on_gpu else book.add_leaves()
    if nodes and not any(signature.args is not None for signature in book.signatures):
        raise BadDataError(
            "no op of the trace joins a node of the execution trace: they are of different runs",
            location=execution_trace,
            fix="give the execution trace that was recorded together with this trace",
        )
    meta = rank.trace.meta
    return ReplayPlan(
        origin=Origin(
            trace=str(trace),
            device_name=meta.devices[0] if meta.devices else "",
            num_sms=meta.num_sms[0] if meta.num_sms else 0,
            run=run,
            has_kernels=rank.on_gpu,
        ),
        forwards=_forwards(rank, book.calls),
        signatures=tuple(book.signatures),
        calls=tuple(book.calls),
        orphans=tuple(book.orphans),
        state=state or {},
        config=config or {},
        notes=_notes(execution_trace, recorded_ops),
    )


def _read_rank(trace: Path, recorded_ops: Path | None) -> RankData:
    load_torch_trace(trace)  # names what else the file is
    ranks = read_trail(Trail(rank=0, trace=trace, recorded_ops=recorded_ops))
    if len(ranks) > 1:
        raise UsageError(
            f"{len(ranks)} processes in one trace", location=trace, fix="replay the trace of each rank"
        )
    if not len(ranks[0].trace.operators):
        raise BadDataError(
            "the trace is without ops, so the ops that launched its kernels are unknown",
            location=trace,
            fix="record CPU and CUDA activities together, with record_shapes",
        )
    return ranks[0]


def _forwards(rank: RankData, calls: Sequence[Call]) -> tuple[Forward, ...]:
    """Names, phases, and the union of the GPU's work that each marked span launched; the last is the rest."""
    by_forward: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for call in calls:
        by_forward[call.forward] += zip(call.ts_us, call.dur_us, strict=True)
    walls_us = [*((rank.marks.spans_ns[:, 1] - rank.marks.spans_ns[:, 0]) / 1000).tolist()]
    named = [*zip(rank.marks.names, rank.marks.phases, walls_us, strict=True)]
    ops = rank.trace.operators
    length_us = float(ops.end_ns.max() - ops.start_ns.min()) / 1000
    outside = ("between", "between", 0.0) if named else ("all", "all", length_us)
    return tuple(
        Forward(
            name=name,
            phase=phase,
            wall_us=round(wall_us, 3),
            busy_us=_covered_us(by_forward[index]) if rank.on_gpu else 0.0,
        )
        for index, (name, phase, wall_us) in enumerate([*named, outside])
    )


def _covered_us(times_us: Sequence[tuple[float, float]]) -> float:
    """Length of the union of (start, duration)."""
    start_ns, dur_ns = (1000 * np.array(times_us).reshape(-1, 2)).round().astype(np.int64).T
    return round(total(spans(start_ns, dur_ns)) / 1000, 3)


def _notes(execution_trace: Path | None, recorded_ops: Path | None) -> tuple[str, ...]:
    if execution_trace is not None:
        return ()
    if recorded_ops is not None:
        return (
            "no execution trace: arguments come from the recorder, which saw another pass of the same run",
        )
    return ("no execution trace: overloads are inferred, and which tensors share memory is not known",)


def read_source(source: Path, execution_trace: Path | None = None, rank: int = 0) -> ReplayPlan:
    """The plan of a trace file, or of one rank of a run. Raises MissingError, UsageError and BadDataError."""
    if not source.exists():
        raise not_here("no such run or trace", source)
    if source.is_file():
        return read_plan(source, execution_trace)
    trail = _trail(source, rank)
    generation = read_json(trail.generation, Generation) if trail.generation else None
    return read_plan(
        trail.trace,
        execution_trace or trail.execution_trace,
        trail.recorded_ops,
        run=str(source),
        state=generation.flags if generation else {},
        config=_config_of(source, generation),
    )


def _trail(source: Path, rank: int) -> Trail:
    by_rank = {trail.rank: trail for trail in trails(source)}
    if not by_rank:
        raise MissingError(
            "no profile of the kernels room in this folder",
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
