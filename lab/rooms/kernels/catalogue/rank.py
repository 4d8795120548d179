"""One rank's trace: owners, forwards and recorded calls of its launches."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from lab.core.words import plural
from lab.errors import BadDataError, LabError
from lab.perfmodel.classes import moves_no_data
from lab.recordings.capture import Capture
from lab.recordings.compiled import is_inductor
from lab.recordings.graphs import Source
from lab.recordings.graphs.frames import Frames, layers_of, read_frames
from lab.recordings.graphs.origins import RULE as REPLAYS
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import Lack
from lab.recordings.load import load_capture
from lab.recordings.phase_names import STEP_PREFIX, step_number
from lab.recordings.processes import process_captures
from lab.recordings.tables import GRAPH, KERNEL, MEMCPY, MEMSET
from lab.recordings.views import device_of, launch_calls, link_ops, linked_by_id, of_graphs
from lab.rooms.kernels.catalogue.align import align, in_order, segments_of_ops, working_ops
from lab.rooms.kernels.catalogue.replayed import Compiled, Replayed, own_capture, read_compiled, read_replayed
from lab.rooms.kernels.schema import Generation, RecordedOp
from lab.rooms.kernels.trails import Trail, read_json, read_lines

_COUNTED = re.compile(r"[\s_#:.-]*\d+$")
KINDS = {KERNEL: "kernel", GRAPH: "kernel", MEMCPY: "memcpy", MEMSET: "memset"}


@dataclass(frozen=True)
class Marks:
    """Forwards or profiler steps of one rank's trace, by start; spans_ns (m, 2) on the launching thread."""

    names: list[str]
    spans_ns: np.ndarray

    @cached_property
    def phases(self) -> list[str]:
        return [_phase_of(name) for name in self.names]


@dataclass
class RankData:
    """One rank: its trace, what the recorder saw, and for each launch (n,) its owner, mark and time."""

    rank: int
    path: Path
    trace: Capture
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
    replayed: Replayed | None = None  # its owners are numbered from len(trace.operators) upwards
    compiled: Compiled | None = None
    frames: Frames | None = None  # Python's, where they were recorded

    @property
    def lacks(self) -> tuple[Lack, ...]:
        """What its recording is missing; of replays by the captures that they were matched with."""
        return _lacks(self.trace, self.replayed)

    def start_ns(self) -> np.ndarray:
        table = self.trace.ops if self.on_gpu else self.trace.operators
        starts: np.ndarray = table.start_ns[self.rows]
        return starts


def read_ranks(
    trails: Sequence[Trail], captures: Sequence[Path] = (), inductor: Sequence[Path] = ()
) -> list[RankData]:
    """The ranks of all traces. A recording of several processes is as many ranks."""
    ranks: list[RankData] = []
    for trail in trails:
        ranks += read_trail(trail, {data.rank for data in ranks}, captures, inductor)
    return ranks


def read_trail(
    trail: Trail,
    taken: Set[int] = frozenset(),
    captures: Sequence[Path] = (),
    inductor: Sequence[Path] = (),
) -> list[RankData]:
    """One recording, process by process, with what its recorder and its generation files say.

    Ranks in `taken` are not given again. captures: recordings, or folders of them, with the operators of the
    graphs that a trace replays; inductor: folders of the files that torch.compile wrote.
    """
    recording = load_capture(trail.trace)
    traces = process_captures(recording)
    ranks = _ranks_of(trail, [trace.meta.rank for trace in traces], taken)
    several = len(traces) > 1
    return [
        _rank_of(
            msgspec.structs.replace(trail, rank=rank),
            trace,
            f"{trail.trace.name}, rank {rank}" if several else trail.trace.name,
            recording.collector == "kineto",
            captures,
            inductor,
        )
        for rank, trace in zip(ranks, traces, strict=True)
    ]


def _ranks_of(trail: Trail, recorded: Sequence[int | None], taken: Set[int]) -> list[int]:
    """A rank for each process: the trail's for one alone, the recorded ones if they tell them apart."""
    wanted = (
        [trail.rank]
        if len(recorded) == 1
        else [recorded_row for recorded_row in recorded if recorded_row is not None]
    )
    if len(set(wanted)) == len(recorded) and not taken & set(wanted):
        return wanted
    next_rank = max(taken, default=-1) + 1
    return list(range(next_rank, next_rank + len(recorded)))


def _rank_of(
    trail: Trail,
    trace: Capture,
    label: str,
    annotated: bool,
    captures: Sequence[Path],
    inductor: Sequence[Path],
) -> RankData:
    """annotated: torch.profiler's steps and lab's forwards are all that marks a phase."""
    problems = [f"{label}: {text}" for text in trace.problems]
    recorded: list[RecordedOp] = []
    generation = None
    try:
        recorded = list(read_lines(trail.recorded_ops, RecordedOp)) if trail.recorded_ops else []
        generation = read_json(trail.generation, Generation) if trail.generation else None
    except LabError as error:  # the trace alone still has most of the information
        problems.append(f"{error.problem} ({error.location})")
    marks = find_marks(trace)
    if not annotated and not marks.names:
        marks = outermost_marks(trace)
    names = trace.text(trace.operators.name_id)
    _, parent = in_order(trace.operators)
    on_gpu = device_of(trace) == "gpu"
    rows = np.arange(len(trace.ops)) if on_gpu else working_ops(names, parent, trace.operators.start_ns)
    owner = link_ops(trace) if on_gpu else rows
    call = align(trace.operators, names, marks.spans_ns, recorded)
    when = launch_times(trace, owner) if on_gpu else trace.operators.start_ns[rows]
    frames = read_frames(trail.trace) if trace.meta.stacks else None
    paths = (
        frames.modules(trace.operators.pid, trace.operators.tid, trace.operators.start_ns) if frames else []
    )
    op_rule = _rules(trace, owner) if on_gpu else np.where(owner >= 0, "external_id", "none").astype(object)
    replayed = None
    if captures or (on_gpu and of_graphs(trace, launch_calls(trace)).any()):
        replayed = read_replayed(trail.rank, trace, frames, captures, len(trace.operators))
        owner = np.where(replayed.inside, replayed.owner, owner) if on_gpu else owner
        op_rule = np.where(replayed.inside, replayed.rule, op_rule) if on_gpu else op_rule
        problems += replayed.problems
    problems += [f"{label}: {text}" for text in sentences(_lacks(trace, replayed))]
    compiled = None
    if on_gpu and any(map(is_inductor, trace.strings)):
        joined = replayed.joined if replayed else None
        own_source = Source(trail.trace, own_capture(trace, joined), frames)
        compiled = read_compiled(trace, own_source, owner, joined, inductor)
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
        frames=frames,
    )


def _lacks(trace: Capture, replayed: Replayed | None) -> tuple[Lack, ...]:
    if replayed is None:
        return trace.lacks
    return (*(lack for lack in trace.lacks if lack.rule != REPLAYS), *replayed.lacks)


def _rules(trace: Capture, owner: np.ndarray) -> np.ndarray:
    """How each launch (n,) found its owner, of those that no graph replayed."""
    rules = np.where(linked_by_id(trace), "external_id", "correlation").astype(object)
    rules[owner < 0] = "none"
    return rules


def _unaligned(rank: int, recorded: list[RecordedOp], call: np.ndarray) -> list[str]:
    """One sentence if recorded calls that do work are not in the trace."""
    aligned = set(call[call >= 0].tolist())
    lost = [op for index, op in enumerate(recorded) if index not in aligned and not moves_no_data(op.name)]
    if not lost:
        return []
    names = ", ".join(sorted({op.name for op in lost})[:4])
    calls = plural(len(recorded), "recorded call")
    return [f"{len(lost)} of {calls} not found in the trace of rank {rank}: {names}"]


def no_launches(ranks: Sequence[RankData]) -> BadDataError:
    """The error for traces in which nothing was launched, or every GPU row was lost."""
    if any(rank.on_gpu for rank in ranks):
        return BadDataError(
            "no GPU row was recorded, though the host launched work",
            location=ranks[0].path,
            fix="record again; `lab inspect` says what is missing",
        )
    return BadDataError(
        "the trace holds neither kernels nor ops",
        location=ranks[0].path,
        fix="record with activities CPU and CUDA, and run the model inside the profiler",
    )


def find_marks(trace: Capture) -> Marks:
    """Ranges `prefill` and `decode_i`; if there are none, the profiler's steps."""
    names = trace.text(trace.annotations.name_id)
    for wanted in (_is_forward, _is_step):
        rows = np.flatnonzero(np.array([wanted(name) for name in names], dtype=bool))
        if len(rows):
            rows = rows[np.argsort(trace.annotations.start_ns[rows], kind="stable")]
            start = trace.annotations.start_ns[rows]
            spans_ns = np.stack([start, start + trace.annotations.dur_ns[rows]], axis=1)
            return Marks([str(name) for name in names[rows]], spans_ns)
    return Marks([], np.empty((0, 2), dtype=np.int64))


def outermost_marks(trace: Capture) -> Marks:
    """The ranges that no other is around, on the thread that launched most; of one around all, its parts."""
    thread = _launching_thread(trace)
    rows = np.flatnonzero(trace.annotations.dur_ns > 0)
    rows = rows[(trace.annotations.pid[rows] == thread[0]) & (trace.annotations.tid[rows] == thread[1])]
    start = trace.annotations.start_ns[rows]
    end = start + trace.annotations.dur_ns[rows]
    order = np.lexsort([-end, start])
    rows, start, end = rows[order], start[order], end[order]
    while len(rows):
        reach = np.concatenate([[start[0]], np.maximum.accumulate(end)[:-1]])
        outer = start >= reach
        if outer.sum() > 1 or outer.all():
            names = trace.text(trace.annotations.name_id)[rows[outer]]
            return Marks([str(name) for name in names], np.stack([start[outer], end[outer]], axis=1))
        rows, start, end = rows[~outer], start[~outer], end[~outer]
    return Marks([], np.empty((0, 2), dtype=np.int64))


def _launching_thread(trace: Capture) -> tuple[int, int]:
    """(pid, tid) of most launches; of most calls where no launch is known; (-1, -1) without calls."""
    call = launch_calls(trace)
    calls = trace.api.take(call[call >= 0]) if (call >= 0).any() else trace.api
    if not len(calls):
        return -1, -1
    threads, counts = np.unique(np.stack([calls.pid, calls.tid], axis=1), axis=0, return_counts=True)
    pid, tid = threads[counts.argmax()].tolist()
    return pid, tid


def _phase_of(name: str) -> str:
    """`step` for the profiler's, `decode` for `decode_3`, `Forward` for `Forward #12`."""
    if name.startswith(STEP_PREFIX):
        return "step"
    return _COUNTED.sub("", name) or name


def _is_forward(name: str) -> bool:
    phase, _, number = name.partition("_")
    return name == "prefill" or (phase == "decode" and number.isdecimal())


def _is_step(name: str) -> bool:
    return step_number(name) >= 0


def mark_of(when_ns: np.ndarray, marks: Marks) -> np.ndarray:
    """Index of the mark around each time (n,), -1 outside all."""
    segment = segments_of_ops(when_ns, marks.spans_ns)
    return np.where(segment % 2 == 1, segment // 2, -1)


def launch_times(trace: Capture, owner: np.ndarray) -> np.ndarray:
    """When the CPU launched each kernel (n,): start of its owner, of its runtime call, or its own."""
    when: np.ndarray = trace.ops.start_ns.copy()
    call = launch_calls(trace)
    when[call >= 0] = trace.api.start_ns[call[call >= 0]]
    when[owner >= 0] = trace.operators.start_ns[owner[owner >= 0]]
    return when
