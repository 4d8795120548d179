"""One rank's trace: owners, forwards and recorded calls of its launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lab.core.words import plural
from lab.errors import LabError
from lab.recordings.cache import load_trace
from lab.recordings.compiled import is_inductor
from lab.recordings.graphs import Source
from lab.recordings.graphs.frames import layers_of, read_frames
from lab.recordings.tables import KERNEL, MEMCPY, MEMSET, Trace
from lab.recordings.views import STEP_PREFIX, launch_calls, link_ops, of_graphs
from lab.rooms.kernels.catalogue.align import align, in_order, segments_of_ops
from lab.rooms.kernels.catalogue.classes import moves_no_data
from lab.rooms.kernels.catalogue.compiled import Compiled, own_capture, read_compiled
from lab.rooms.kernels.catalogue.cpu_work import working_ops
from lab.rooms.kernels.catalogue.replayed import Replayed, read_replayed
from lab.rooms.kernels.schema import Generation, RecordedOp
from lab.rooms.kernels.trails import Trail, read_json, read_lines

KINDS = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset"}


@dataclass(frozen=True)
class Marks:
    """Forwards or profiler steps of one rank's trace, by start; spans_ns (m, 2) on the launching thread."""

    names: list[str]
    spans_ns: np.ndarray

    @property
    def phases(self) -> list[str]:
        return ["step" if name.startswith(STEP_PREFIX) else name.split("_")[0] for name in self.names]


@dataclass
class RankData:
    """One rank: its trace, what the recorder saw, and for each launch (n,) its owner, mark and time."""

    rank: int
    path: Path
    trace: Trace
    marks: Marks
    generation: Generation | None
    recorded: list[RecordedOp]
    on_gpu: bool
    rows: np.ndarray  # of `kernels`, on a CPU of `ops`
    owner: np.ndarray  # row of `ops`, -1 unknown
    mark: np.ndarray  # index of its forward, -1 outside all
    parent: np.ndarray  # (ops,) row of the op around each op
    call: np.ndarray  # (ops,) index of the recorded call, -1
    problems: list[str] = field(default_factory=list)
    op_rule: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=object))  # (n,) of graphs.RULES
    modules: list[str] = field(default_factory=list)  # (ops,) around each op, by the Python stack
    layers: list[str] = field(default_factory=list)  # (ops,) of these
    replayed: Replayed | None = None  # its owners are numbered from len(trace.ops) upwards
    compiled: Compiled | None = None

    def start_ns(self) -> np.ndarray:
        table = self.trace.kernels if self.on_gpu else self.trace.ops
        found: np.ndarray = table.ts_ns[self.rows]
        return found

    def op_names(self) -> np.ndarray:
        """The owner's name (n,) of each launch, "" for none."""
        trace = self.trace
        borrowed = [op.name for op in self.replayed.ops] if self.replayed else []
        names: np.ndarray = np.array([*trace.text(trace.ops.name_id), *borrowed, ""], dtype=object)
        found: np.ndarray = names[self.owner]
        return found


def read_rank(
    trail: Trail,
    *,
    cache: Path | None = None,
    captures: Sequence[Path] = (),
    inductor: Sequence[Path] = (),
) -> RankData:
    """One rank's trace, with what its recorder and its generation files say.

    captures: recordings, or folders of them, with the operators of the graphs that it replays;
    inductor: folders of the files that torch.compile wrote.
    """
    trace = load_trace(trail.trace, cache=cache)
    problems = [f"{trail.trace.name}: {text}" for text in trace.problems]
    recorded: list[RecordedOp] = []
    generation = None
    try:
        recorded = list(read_lines(trail.recorded_ops, RecordedOp)) if trail.recorded_ops else []
        generation = read_json(trail.generation, Generation) if trail.generation else None
    except LabError as error:  # the trace alone still has most of the information
        problems.append(f"{error.what} ({error.where})")
    marks = find_marks(trace)
    names = trace.text(trace.ops.name_id)
    _, parent = in_order(trace.ops)
    on_gpu = len(trace.kernels) > 0
    rows = np.arange(len(trace.kernels)) if on_gpu else working_ops(names, parent, trace.ops.ts_ns)
    owner = link_ops(trace) if on_gpu else rows
    call = align(trace.ops, names, marks.spans_ns, recorded)
    when = launch_times(trace, owner) if on_gpu else trace.ops.ts_ns[rows]
    frames = read_frames(trail.trace) if trace.meta.stacks else None
    paths = frames.modules(trace.ops.pid, trace.ops.tid, trace.ops.ts_ns) if frames else []
    op_rule = _rules(trace, owner) if on_gpu else np.where(owner >= 0, "external_id", "none").astype(object)
    replayed = None
    if captures or (on_gpu and of_graphs(trace, launch_calls(trace)).any()):
        replayed = read_replayed(trail.rank, trace, frames, captures, len(trace.ops))
        owner = np.where(replayed.inside, replayed.owner, owner) if on_gpu else owner
        op_rule = np.where(replayed.inside, replayed.rule, op_rule) if on_gpu else op_rule
        problems += replayed.problems
    compiled = None
    if on_gpu and any(map(is_inductor, trace.strings)):
        joined = replayed.joined if replayed else None
        own = Source(trail.trace, own_capture(trace, joined), frames)
        compiled = read_compiled(trace, own, owner, joined, inductor)
    return RankData(
        rank=trail.rank,
        path=trail.trace,
        trace=trace,
        marks=marks,
        generation=generation,
        recorded=recorded,
        on_gpu=on_gpu,
        rows=rows,
        owner=owner,
        mark=mark_of(when, marks),
        parent=parent,
        call=call,
        problems=[*problems, *_unaligned(trail.rank, recorded, call)],
        op_rule=op_rule,
        modules=[".".join(path) for path in paths],
        layers=layers_of(paths),
        replayed=replayed,
        compiled=compiled,
    )


def _rules(trace: Trace, owner: np.ndarray) -> np.ndarray:
    """How each launch (n,) found its owner, of those that no graph replayed."""
    by_id = np.append(trace.ops.external_id, -1)[owner] == trace.kernels.external_id
    rules = np.where(by_id, "external_id", "correlation").astype(object)
    rules[owner < 0] = "none"
    return rules


def _unaligned(rank: int, recorded: list[RecordedOp], call: np.ndarray) -> list[str]:
    """One sentence if recorded calls that do work are not in the trace."""
    aligned = set(call[call >= 0].tolist())
    lost = [op for index, op in enumerate(recorded) if index not in aligned and not moves_no_data(op.name)]
    if not lost:
        return []
    names = ", ".join(sorted({op.name for op in lost})[:4])
    whole = plural(len(recorded), "recorded call")
    return [f"{len(lost)} of {whole} not found in the trace of rank {rank}: {names}"]


def find_marks(trace: Trace) -> Marks:
    """Ranges `prefill` and `decode_i`; if there are none, the profiler's steps."""
    host = ~trace.ranges.on_gpu
    names = trace.text(trace.ranges.name_id)
    for wanted in (_is_forward, _is_step):
        rows = np.flatnonzero(host & np.array([wanted(name) for name in names], dtype=bool))
        if len(rows):
            rows = rows[np.argsort(trace.ranges.ts_ns[rows], kind="stable")]
            start = trace.ranges.ts_ns[rows]
            spans_ns = np.stack([start, start + trace.ranges.dur_ns[rows]], axis=1)
            return Marks([str(name) for name in names[rows]], spans_ns)
    return Marks([], np.empty((0, 2), dtype=np.int64))


def _is_forward(name: str) -> bool:
    phase, _, number = name.partition("_")
    return name == "prefill" or (phase == "decode" and number.isdecimal())


def _is_step(name: str) -> bool:
    return name.startswith(STEP_PREFIX) and name.removeprefix(STEP_PREFIX).isdecimal()


def mark_of(when_ns: np.ndarray, marks: Marks) -> np.ndarray:
    """Index of the mark around each time (n,), -1 outside all."""
    segment = segments_of_ops(when_ns, marks.spans_ns)
    return np.where(segment % 2 == 1, segment // 2, -1)


def launch_times(trace: Trace, owner: np.ndarray) -> np.ndarray:
    """When the CPU launched each kernel (n,): start of its owner, of its runtime call, or its own."""
    when: np.ndarray = trace.kernels.ts_ns.copy()
    call = launch_calls(trace)
    when[call >= 0] = trace.runtime.ts_ns[call[call >= 0]]
    when[owner >= 0] = trace.ops.ts_ns[owner[owner >= 0]]
    return when
