"""Kernels that graphs replayed or Inductor made: the operators and the files that explain them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import Capture
from lab.recordings.compiled import (
    InductorKernel,
    Provenance,
    is_inductor,
    read_inductor,
    read_provenance,
)
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
    own_rank = trace.meta.rank
    of_rank = [s for s in beside if own_rank is not None and s.capture.meta.rank == own_rank]
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


# Inductor's Triton kernels of one rank, and the files that explain them.

# Where an execution trace observer, TORCH_COMPILE_DEBUG and a copied cache leave their files.
_BESIDE = re.compile(r".*_resources\Z|torch_compile_debug\Z|torchinductor(_\w+)?\Z")


@dataclass
class Compiled:
    """Columns (n,) with a row per launch, "" where it is not of Inductor or nothing is known.

    hashes: of the kernel's file; lines: of the generated file.
    """

    hashes: np.ndarray
    lines: np.ndarray
    kernels: dict[str, InductorKernel] = field(default_factory=dict)
    op_names: set[str] = field(default_factory=set)
    provenance: Provenance = field(default_factory=Provenance)


def read_compiled(
    trace: Capture, own_source: Source, owner: np.ndarray, joined: Join | None, folders: Sequence[Path]
) -> Compiled | None:
    """What is known of the Inductor kernels of one rank; None if it has none.

    owner (n,): row of `trace.operators`, for launches that no graph replayed; folders: of Inductor's files.
    """
    if not any(map(is_inductor, trace.strings)):
        return None
    size = len(owner)
    source = np.where((owner >= 0) & (owner < len(trace.operators)), 0, -1)
    row = np.append(trace.operator_rows, -1)[np.where(source == 0, owner, -1)]
    if joined is not None:
        source = np.where(joined.inside, np.where(joined.rows.op >= 0, joined.rows.source, -1), source)
        row = np.where(joined.inside, joined.rows.op, row)
    compiled = Compiled(np.full(size, "", dtype=object), np.full(size, "", dtype=object))
    names = trace.text(trace.ops.name_id)
    of_inductor = np.array([is_inductor(name) for name in names], dtype=bool)
    for index, origin in enumerate(joined.sources if joined is not None else (own_source,)):
        rows = np.flatnonzero(of_inductor & (source == index) & (row >= 0))
        compiled.op_names |= {text.partition("::")[2] for text in origin.capture.strings if "::" in text}
        if len(rows):
            _fill(compiled, origin, rows, row[rows])
    compiled.op_names = {name for name in compiled.op_names if name.isidentifier()}
    beside = [path for path in sorted(trace.source.parent.iterdir()) if path.is_dir()]
    compiled.provenance = read_provenance(
        [*folders, *(origin for origin in beside if _BESIDE.match(origin.name))]
    )
    return compiled


def own_capture(trace: Capture, joined: Join | None) -> Capture:
    return joined.sources[0].capture if joined is not None else trace


def _fill(compiled: Compiled, source: Source, rows: np.ndarray, ranges: np.ndarray) -> None:
    """The columns of launches `rows` (m,), whose ops are `ranges` (m,) of the source."""
    kernels = read_inductor(source.path)
    ops = source.capture.ranges.take(ranges)
    described = [kernels.get(index) for index in ops.external_id.tolist()]
    compiled.hashes[rows] = [row.hash if row else "" for row in described]
    compiled.kernels |= {row.hash: row for row in described if row}
    if source.frames is not None:
        compiled.lines[rows] = source.frames.lines(ops.pid, ops.tid, ops.start_ns, generated=True)
