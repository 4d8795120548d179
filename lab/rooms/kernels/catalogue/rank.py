"""One rank's trace: owners, forwards and recorded calls of its launches."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from lab.core.words import plural
from lab.errors import BadDataError, LabError
from lab.recordings.as_trace import load_traces
from lab.recordings.integrity.words import sentences
from lab.recordings.tables import KERNEL, MEMCPY, MEMSET, Trace
from lab.recordings.views import STEP_PREFIX, launch_calls, link_ops
from lab.rooms.kernels.catalogue.align import align, in_order, segments_of_ops
from lab.rooms.kernels.catalogue.classes import moves_no_data
from lab.rooms.kernels.catalogue.cpu_work import working_ops
from lab.rooms.kernels.schema import Generation, RecordedOp
from lab.rooms.kernels.trails import Trail, read_json, read_lines

_COUNTED = re.compile(r"[\s_#:.-]*\d+$")
KINDS = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset"}


@dataclass(frozen=True)
class Marks:
    """Forwards or profiler steps of one rank's trace, by start; spans_ns (m, 2) on the launching thread."""

    names: list[str]
    spans_ns: np.ndarray

    @property
    def phases(self) -> list[str]:
        return [_phase_of(name) for name in self.names]


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

    def start_ns(self) -> np.ndarray:
        table = self.trace.kernels if self.on_gpu else self.trace.ops
        found: np.ndarray = table.ts_ns[self.rows]
        return found


def read_ranks(trails: Sequence[Trail], *, cache: Path | None = None) -> list[RankData]:
    """The ranks of all traces. A recording of several processes is as many ranks."""
    found: list[RankData] = []
    for trail in trails:
        found += read_trail(trail, {one.rank for one in found}, cache=cache)
    return found


def read_rank(trail: Trail, *, cache: Path | None = None) -> RankData:
    """The only rank of a recording of one process."""
    (only,) = read_trail(trail, cache=cache)
    return only


def read_trail(trail: Trail, taken: Set[int] = frozenset(), *, cache: Path | None = None) -> list[RankData]:
    """One recording, process by process, with what its recorder and its generation files say.

    Ranks in `taken` are not given again.
    """
    traces, annotated = load_traces(trail.trace, cache=cache)
    ranks = _ranks_of(trail, [one.meta.rank for one in traces], taken)
    several = len(traces) > 1
    return [
        _rank_of(
            msgspec.structs.replace(trail, rank=rank),
            trace,
            f"{trail.trace.name}, rank {rank}" if several else trail.trace.name,
            annotated,
        )
        for rank, trace in zip(ranks, traces, strict=True)
    ]


def _ranks_of(trail: Trail, known: Sequence[int | None], taken: Set[int]) -> list[int]:
    """A rank for each process: the trail's for one alone, the recorded ones if they tell them apart."""
    wanted = [trail.rank] if len(known) == 1 else [one for one in known if one is not None]
    if len(set(wanted)) == len(known) and not taken & set(wanted):
        return wanted
    first = max(taken, default=-1) + 1
    return list(range(first, first + len(known)))


def _rank_of(trail: Trail, trace: Trace, label: str, annotated: bool) -> RankData:
    """annotated: torch.profiler's steps and lab's forwards are all that marks a phase."""
    problems = [f"{label}: {text}" for text in (*trace.problems, *sentences(trace.lacks))]
    recorded: list[RecordedOp] = []
    generation = None
    try:
        recorded = list(read_lines(trail.recorded_ops, RecordedOp)) if trail.recorded_ops else []
        generation = read_json(trail.generation, Generation) if trail.generation else None
    except LabError as error:  # the trace alone still has most of the information
        problems.append(f"{error.what} ({error.where})")
    marks = find_marks(trace)
    if not annotated and not marks.names:
        marks = outermost_marks(trace)
    names = trace.text(trace.ops.name_id)
    _, parent = in_order(trace.ops)
    on_gpu = len(trace.kernels) > 0
    rows = np.arange(len(trace.kernels)) if on_gpu else working_ops(names, parent, trace.ops.ts_ns)
    owner = link_ops(trace) if on_gpu else rows
    call = align(trace.ops, names, marks.spans_ns, recorded)
    when = launch_times(trace, owner) if on_gpu else trace.ops.ts_ns[rows]
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
    )


def _unaligned(rank: int, recorded: list[RecordedOp], call: np.ndarray) -> list[str]:
    """One sentence if recorded calls that do work are not in the trace."""
    aligned = set(call[call >= 0].tolist())
    lost = [op for index, op in enumerate(recorded) if index not in aligned and not moves_no_data(op.name)]
    if not lost:
        return []
    names = ", ".join(sorted({op.name for op in lost})[:4])
    whole = plural(len(recorded), "recorded call")
    return [f"{len(lost)} of {whole} not found in the trace of rank {rank}: {names}"]


def no_launches(ranks: Sequence[RankData]) -> BadDataError:
    """The error for traces in which nothing was launched."""
    return BadDataError(
        "the trace holds neither kernels nor ops",
        where=ranks[0].path,
        fix="record with activities CPU and CUDA, and run the model inside the profiler",
    )


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


def outermost_marks(trace: Trace) -> Marks:
    """The ranges that no other is around, on the thread that launched most; of one around all, its parts."""
    thread = _launching_thread(trace)
    rows = np.flatnonzero(~trace.ranges.on_gpu & (trace.ranges.dur_ns > 0))
    rows = rows[(trace.ranges.pid[rows] == thread[0]) & (trace.ranges.tid[rows] == thread[1])]
    start = trace.ranges.ts_ns[rows]
    end = start + trace.ranges.dur_ns[rows]
    order = np.lexsort([-end, start])
    rows, start, end = rows[order], start[order], end[order]
    while len(rows):
        before = np.concatenate([[start[0]], np.maximum.accumulate(end)[:-1]])
        outer = start >= before
        if outer.sum() > 1 or outer.all():
            names = trace.text(trace.ranges.name_id)[rows[outer]]
            return Marks([str(name) for name in names], np.stack([start[outer], end[outer]], axis=1))
        rows, start, end = rows[~outer], start[~outer], end[~outer]
    return Marks([], np.empty((0, 2), dtype=np.int64))


def _launching_thread(trace: Trace) -> tuple[int, int]:
    """(pid, tid) of most launches; of most calls where no launch is known; (-1, -1) without calls."""
    call = launch_calls(trace)
    calls = trace.runtime.take(call[call >= 0]) if (call >= 0).any() else trace.runtime
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
