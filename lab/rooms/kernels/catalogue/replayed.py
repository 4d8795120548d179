"""Kernels that graphs replayed: the operators they had at capture, as records of the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import Capture
from lab.recordings.graphs import CONFIDENCES, LAYER_RULES, RULES, Join, Source, join, lacks_of, load_sources
from lab.recordings.graphs.frames import Frames
from lab.recordings.graphs.join import executed_batches
from lab.recordings.lacks import Lack
from lab.rooms.kernels.catalogue.trace_args import args_of
from lab.rooms.kernels.schema import Arg, OpRecord

_ARGS = ("dims_id", "types_id", "strides_id", "concrete_id")


@dataclass
class Replayed:
    """What the captures say of one rank's replays. Arrays have a row per kernel (n,).

    inside: launched by a graph; owner: number of the op (`first_id` upwards, in the order of `ops`), or -1;
    rule, layer_rule, layer, confidence: texts. refused: why what was asked for with --capture was not done.
    """

    inside: np.ndarray
    owner: np.ndarray
    rule: np.ndarray
    layer_rule: np.ndarray
    layer: np.ndarray
    confidence: np.ndarray
    ops: list[OpRecord]
    problems: list[str] = field(default_factory=list)
    lacks: tuple[Lack, ...] = ()
    refused: list[str] = field(default_factory=list)
    joined: Join | None = None


def read_replayed(
    rank: int, trace: Capture, frames: Frames | None, captures: Sequence[Path], first_id: int
) -> Replayed:
    """The replays of one rank's trace, matched with the captures in it and at `captures`."""
    beside, notes = load_sources(captures, executed_batches(trace)) if captures else ([], [])
    of_rank = [one for one in beside if one.rank is not None and one.rank == trace.meta.rank]
    joined = join(Source(trace.source, trace, frames), of_rank or beside)
    ops = _Ops(rank, joined, first_id)
    rows, texts = joined.rows, np.array([*joined.texts], dtype=object)
    lost, lost_ns = joined.unattributed
    lacks = lacks_of(joined)
    problems = [*notes, *joined.problems, *_counted(joined)]
    refused = list(joined.problems)
    if captures and lost:
        kernels = plural(lost, "replayed kernel")
        refused.append(f"{kernels} ({lost_ns / 1e6:.3f} ms) of rank {rank} without an op in the captures")
    return Replayed(
        inside=joined.inside,
        owner=ops.owners(),
        rule=np.array(RULES, dtype=object)[rows.rule],
        layer_rule=np.array(LAYER_RULES, dtype=object)[rows.layer_rule],
        layer=texts[rows.layer],
        confidence=np.array(CONFIDENCES, dtype=object)[rows.confidence],
        ops=ops.records,
        problems=problems,
        lacks=lacks,
        refused=refused if captures else [],
        joined=joined,
    )


def _counted(joined: Join) -> list[str]:
    """How the replayed kernels got their ops, in one sentence with counts and times of every rule."""
    if not joined.inside.any():
        return []
    words = {
        "node": "by graph node",
        "order": "by their place in the capture",
        "name": "by name alone (their layer is not known)",
        "none": "without an op",
    }
    parts = [f"{n:,} {words[rule]}, {ns / 1e6:.3f} ms" for rule, (n, ns) in joined.counts().items()]
    kernels = plural(int(joined.inside.sum()), "kernel")
    by_count = int((joined.rows.confidence == CONFIDENCES.index("count")).sum())
    note = (
        f"; the capture names no kernels: {plural(by_count, 'row')} paired by number and kind alone, "
        "an eager trace beside it would verify them"
    )
    return [f"{kernels} replayed by graphs: {'; '.join(parts)}{note if by_count else ''}"]


class _Ops:
    """Records of the operators that replayed kernels had at capture, each once."""

    def __init__(self, rank: int, joined: Join, first_id: int) -> None:
        self.rank, self.joined, self.first_id = rank, joined, first_id
        self.records: list[OpRecord] = []
        self._numbers: dict[tuple[int, ...], int] = {}

    def owners(self) -> np.ndarray:
        rows = self.joined.rows
        columns = np.stack([rows.source, rows.op, rows.op_name, rows.module], axis=1)
        used, group = np.unique(columns, axis=0, return_inverse=True)
        numbers = np.array([self._number(*key) for key in used.tolist()], dtype=np.int64)
        return numbers[group.ravel()] if len(used) else np.empty(0, dtype=np.int64)

    def _number(self, source: int, op: int, op_name: int, module: int) -> int:
        if op_name == 0:
            return -1
        texts = self.joined.texts
        self.records.append(
            OpRecord(
                rank=self.rank,
                op_id=self.first_id + len(self.records),
                name=texts[op_name],
                args=list(self._args(source, op)),
                module_path=texts[module],
            )
        )
        return self.first_id + len(self.records) - 1

    def _args(self, source: int, op: int) -> tuple[Arg, ...]:
        if source < 0 or op < 0:
            return ()
        capture = self.joined.sources[source].capture
        return args_of(*(capture.name(int(getattr(capture.ranges, name)[op])) for name in _ARGS))
