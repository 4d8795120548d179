"""Traces of one or many ranks -> every launch with the op that owns it, and every distinct launch with its counts.

Two launches are the same when kernel, grid, block, shared memory, registers, bytes of a copy, op, overload, arguments
and phase are the same; device, stream and rank are not in the key, so tensor parallel ranks fold. Counts are of what
the trace holds and are divided by forwards that ran, never by what was asked for. A trace without GPU rows has CPU ops
in the place of launches.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.errors import BadDataError, LabError
from lab.recordings.cache import load_trace
from lab.recordings.names import short_name
from lab.recordings.tables import KERNEL, MEMCPY, MEMSET, Trace
from lab.recordings.views import STEP_PREFIX, launch_calls, link_ops
from lab.rooms.kernels.catalogue.align import align, in_order, segments_of_ops
from lab.rooms.kernels.catalogue.classes import class_of, class_of_op, moves_no_data, works_itself
from lab.rooms.kernels.catalogue.trace_args import args_of, summary
from lab.rooms.kernels.schema import (
    UNIQUE_COLUMNS,
    Arg,
    Durations,
    Generation,
    Launch,
    OpRecord,
    RecordedOp,
    Signature,
    Signatures,
    Trail,
    read_json,
    read_lines,
)

KINDS = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset"}
MARKED = ("prefill", "decode")
_GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "smem_bytes", "regs", "bytes")


@dataclass(frozen=True)
class Marks:
    """The forwards (or profiler steps) of one rank's trace, by start; spans_ns (m, 2) on the launching thread."""

    names: list[str]
    spans_ns: np.ndarray

    @property
    def phases(self) -> list[str]:
        return ["step" if name.startswith(STEP_PREFIX) else name.split("_")[0] for name in self.names]


@dataclass
class RankData:
    """One rank: its trace, what the recorder saw, and for each launch (n,) its owner, mark and time."""

    rank: int
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


@dataclass
class Catalogue:
    """Everything the traces tell. `launches` are ordered by rank, then time; sig_id joins them with `signatures`."""

    ranks: list[RankData]
    launches: list[Launch]
    ops: list[OpRecord]
    signatures: Signatures
    unique: pd.DataFrame
    problems: list[str]


def read_catalogue(
    found: Sequence[Trail], *, cache: Path | None = None, progress: Callable[[str], None] = lambda _: None
) -> Catalogue:
    """Read the traces of all ranks and put the catalogue together. Raises what the reader raises for a broken one."""
    ranks = []
    for trail in found:
        progress(f"  reading {trail.trace.name}")
        ranks.append(read_rank(trail, cache=cache))
    if not any(len(rank.rows) for rank in ranks):
        raise BadDataError(
            "the trace holds neither kernels nor ops",
            where=found[0].trace,
            fix="record with activities CPU and CUDA, and run the model inside the profiler",
        )
    return put_together(ranks)


def read_rank(trail: Trail, *, cache: Path | None = None) -> RankData:
    """One rank's trace with its recorder's file, where there is one."""
    trace = load_trace(trail.trace, cache=cache)
    problems = [f"{trail.trace.name}: {text}" for text in trace.problems]
    recorded, generation = [], None
    try:
        recorded = list(read_lines(trail.recorded_ops, RecordedOp)) if trail.recorded_ops else []
        generation = read_json(trail.generation, Generation) if trail.generation else None
    except LabError as error:  # the trace still tells most
        problems.append(f"{error.what} ({error.where})")
    return rank_data(trail.rank, trace, recorded, generation, problems)


def rank_data(
    rank: int, trace: Trace, recorded: list[RecordedOp], generation: Generation | None, problems: list[str]
) -> RankData:
    """Owners, forwards and recorded calls of a trace that has been read."""
    marks = find_marks(trace)
    names = trace.text(trace.ops.name_id)
    _, parent = in_order(trace.ops)
    on_gpu = len(trace.kernels) > 0
    rows = np.arange(len(trace.kernels)) if on_gpu else working_ops(names, parent, trace.ops.ts_ns)
    owner = link_ops(trace) if on_gpu else rows
    call = align(trace.ops, names, marks.spans_ns, recorded)
    problems = [*problems, *unaligned(rank, recorded, call)]
    when = launch_times(trace, owner) if on_gpu else trace.ops.ts_ns[rows]
    return RankData(
        rank,
        trace,
        marks,
        generation,
        recorded,
        on_gpu,
        rows,
        owner,
        _mark_of(when, marks),
        parent,
        call,
        problems,
    )


def unaligned(rank: int, recorded: list[RecordedOp], call: np.ndarray) -> list[str]:
    """Recorded calls that do work and that the trace does not show, in a sentence."""
    aligned = set(call[call >= 0].tolist())
    lost = [op for at, op in enumerate(recorded) if at not in aligned and not moves_no_data(op.name)]
    if not lost:
        return []
    names = ", ".join(sorted({op.name for op in lost})[:4])
    return [
        f"{len(lost)} of {len(recorded)} recorded calls were not found in the trace of rank {rank}: {names}"
    ]


def find_marks(trace: Trace) -> Marks:
    """Ranges `prefill`, `decode_i`; else the profiler's steps; else none."""
    host = ~trace.ranges.on_gpu
    names = trace.text(trace.ranges.name_id)
    for wanted in (_is_forward, _is_step):
        rows = np.flatnonzero(host & np.array([wanted(name) for name in names], dtype=bool))
        if len(rows):
            rows = rows[np.argsort(trace.ranges.ts_ns[rows], kind="stable")]
            start = trace.ranges.ts_ns[rows]
            return Marks(
                [str(name) for name in names[rows]],
                np.stack([start, start + trace.ranges.dur_ns[rows]], axis=1),
            )
    return Marks([], np.empty((0, 2), dtype=np.int64))


def _is_forward(name: str) -> bool:
    phase, _, number = name.partition("_")
    return name == "prefill" or (phase == "decode" and number.isdecimal())


def _is_step(name: str) -> bool:
    return name.startswith(STEP_PREFIX) and name.removeprefix(STEP_PREFIX).isdecimal()


def _mark_of(when_ns: np.ndarray, marks: Marks) -> np.ndarray:
    segment = segments_of_ops(when_ns, marks.spans_ns)
    return np.where(segment % 2 == 1, segment // 2, -1)


def launch_times(trace: Trace, owner: np.ndarray) -> np.ndarray:
    """When the CPU launched each row of `kernels` (n,): its owner's start, else its call's, else its own."""
    when: np.ndarray = trace.kernels.ts_ns.copy()
    call = launch_calls(trace)
    when[call >= 0] = trace.runtime.ts_ns[call[call >= 0]]
    when[owner >= 0] = trace.ops.ts_ns[owner[owner >= 0]]
    return when


def working_ops(names: np.ndarray, parent: np.ndarray, ts_ns: np.ndarray) -> np.ndarray:
    """Rows (n,) of the CPU ops that own work, by start: those that do their own, else those without such inside them."""
    works = ~np.array([moves_no_data(name) for name in names], dtype=bool)
    own = np.array([works_itself(name) for name in names], dtype=bool)
    inside_own, has_worker = _looked_around(works, own, parent)
    rows = np.flatnonzero(works & ~inside_own & (own | ~has_worker))
    found: np.ndarray = rows[np.argsort(ts_ns[rows], kind="stable")]
    return found


def _looked_around(works: np.ndarray, own: np.ndarray, parent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(lies inside an op that works itself (n,), has a working op inside (n,)); by climbing from every op at once."""
    inside_own, has_worker = np.zeros(len(works), dtype=bool), np.zeros(len(works), dtype=bool)
    above = parent.copy()
    climbing = np.flatnonzero(above >= 0)
    while len(climbing):
        up = above[climbing]
        inside_own[climbing] |= own[up]
        has_worker[up[works[climbing]]] = True
        above[climbing] = parent[up]
        climbing = climbing[above[climbing] >= 0]
    return inside_own, has_worker


def put_together(ranks: list[RankData]) -> Catalogue:
    """One catalogue of all ranks, on a common zero of time."""
    starts = [rank.start_ns() for rank in ranks]
    zero_ns = min((int(one.min()) for one in starts if len(one)), default=0)
    launches: list[Launch] = []
    keys: list[tuple[Any, ...]] = []
    ops: list[OpRecord] = []
    for rank in ranks:
        book = _OpBook(rank, zero_ns)
        found = _launches(rank, book, zero_ns)
        launches += [launch for launch, _ in found]
        keys += [key for _, key in found]
        ops += book.records()
    signatures = _signatures(ranks, launches, keys)
    problems = (
        [text for rank in ranks for text in rank.problems]
        + uneven(signatures)
        + owners_missing(launches, ranks)
    )
    return Catalogue(ranks, launches, ops, signatures, unique_table(signatures, launches), problems)


class _OpBook:
    """The ops of one rank that own launches, and those around them; each described once."""

    def __init__(self, rank: RankData, zero_ns: int) -> None:
        self.rank, self.zero_ns = rank, zero_ns
        self.names = rank.trace.text(rank.trace.ops.name_id)
        self.mark = _mark_of(rank.trace.ops.ts_ns, rank.marks)
        self.kept: dict[int, OpRecord] = {}

    def own(self, row: int) -> OpRecord:
        """The record of the op at `row`, which owns one more launch; the ops around it are kept too."""
        record = self._keep(row)
        record.num_launches += 1
        above = record.parent
        while above >= 0 and above not in self.kept:
            above = self._keep(above).parent
        return record

    def records(self) -> list[OpRecord]:
        return [self.kept[row] for row in sorted(self.kept)]

    def module_of(self, row: int) -> str:
        """The module path of the nearest recorded call around the op at `row`."""
        while row >= 0:
            call = self.rank.call[row]
            if call >= 0:
                return str(self.rank.recorded[call].module_path)
            row = int(self.rank.parent[row])
        return ""

    def _keep(self, row: int) -> OpRecord:
        if row in self.kept:
            return self.kept[row]
        ops, rank, mark = self.rank.trace.ops, self.rank, int(self.mark[row])
        call = int(rank.call[row])
        known = rank.recorded[call] if call >= 0 else None
        self.kept[row] = record = OpRecord(
            rank=rank.rank,
            op_id=row,
            name=str(self.names[row]),
            overload=known.overload if known else None,
            args=known.args if known else list(_trace_args(rank.trace, row)),
            parent=int(rank.parent[row]),
            module_path=self.module_of(row),
            phase=rank.marks.phases[mark] if mark >= 0 else "",
            forward=mark,
            external_id=int(ops.external_id[row]),
            rf_id=int(ops.rf_id[row]),
            tid=int(ops.tid[row]),
            ts_us=(int(ops.ts_ns[row]) - self.zero_ns) / 1000,
            dur_us=int(ops.dur_ns[row]) / 1000,
            recorded=call,
        )
        return record


def _trace_args(trace: Trace, row: int) -> tuple[Arg, ...]:
    ops = trace.ops
    texts = [
        trace.strings[i] if i >= 0 else ""
        for i in (ops.dims_id[row], ops.types_id[row], ops.strides_id[row], ops.concrete_id[row])
    ]
    return args_of(*texts)


def _launches(rank: RankData, book: _OpBook, zero_ns: int) -> list[tuple[Launch, tuple[Any, ...]]]:
    """Every launch of a rank by time, with the key that makes it equal to others."""
    columns = _columns(rank)
    order = np.argsort(columns["ts_ns"], kind="stable")
    phases = rank.marks.phases
    found = []
    for at in order.tolist():
        record = book.own(int(rank.owner[at])) if rank.owner[at] >= 0 else None
        mark, name, kind = int(rank.mark[at]), columns["name"][at], columns["kind"][at]
        sizes = tuple(int(columns[one][at]) for one in _GEOMETRY)
        op = record.name if record else ""
        launch = Launch(
            rank=rank.rank,
            device=int(columns["device"][at]),
            stream=int(columns["stream"][at]),
            ts_us=(int(columns["ts_ns"][at]) - zero_ns) / 1000,
            dur_us=int(columns["dur_ns"][at]) / 1000,
            name=name,
            kind=kind,
            class_=_class(name, op, kind, columns["coll"][at]),
            grid=(sizes[0], sizes[1], sizes[2]),
            block=(sizes[3], sizes[4], sizes[5]),
            smem_bytes=sizes[6],
            regs=sizes[7],
            bytes=sizes[8],
            op_id=int(rank.owner[at]),
            coll=columns["coll"][at],
            phase=phases[mark] if mark >= 0 else "",
            forward=mark,
            correlation=int(columns["correlation"][at]),
            row=int(rank.rows[at]),
        )
        key = (name, kind, sizes, op, record.overload if record else None, _args_key(record), launch.phase)
        launch.sig_id = _sig_id(key)
        found.append((launch, key))
    return found


@lru_cache(maxsize=1 << 16)
def _class(name: str, op: str, kind: str, coll: str) -> str:
    if coll:
        return "comm"
    if kind == "cpu_op":
        return class_of_op(op)
    return kind if kind != "kernel" else class_of(name, op)


def _columns(rank: RankData) -> dict[str, Any]:
    """The launches' columns (n,), whether they are rows of `kernels` or, on a CPU, of `ops`."""
    if not rank.on_gpu:
        ops = rank.trace.ops.take(rank.rows)
        unknown = np.full(len(ops), -1)
        names = rank.trace.text(ops.name_id)
        return {
            "ts_ns": ops.ts_ns,
            "dur_ns": ops.dur_ns,
            "name": names,
            "device": unknown,
            "stream": ops.tid,
            "kind": ["cpu_op"] * len(ops),
            "coll": [""] * len(ops),
            "correlation": unknown,
            **dict.fromkeys(_GEOMETRY, unknown),
        }
    kernels, trace = rank.trace.kernels, rank.trace
    coll = np.full(len(kernels), "", dtype=object)
    coll[trace.collectives.kernel] = trace.text(trace.collectives.collective_id)
    named = {
        name: getattr(kernels, name)
        for name in ("ts_ns", "dur_ns", "device", "stream", "correlation", *_GEOMETRY)
    }
    return {
        **named,
        "name": trace.text(kernels.name_id),
        "kind": [KINDS[kind] for kind in kernels.kind.tolist()],
        "coll": coll,
    }


def _args_key(record: OpRecord | None) -> str:
    """What of the arguments makes two launches differ: types, sizes, strides and numbers; not where the data lie."""
    return "" if record is None else _digest(tuple(map(_bare, record.args)))


def _bare(arg: Arg | None) -> Any:
    if arg is None:
        return None
    sizes = (
        tuple(arg.shape) if arg.shape is not None else None,
        tuple(arg.stride) if arg.stride is not None else None,
    )
    return arg.kind, arg.dtype, *sizes, arg.device, repr(arg.value), tuple(map(_bare, arg.items or ()))


@lru_cache(maxsize=1 << 16)
def _digest(bare: tuple[Any, ...]) -> str:
    return hashlib.blake2b(repr(bare).encode(), digest_size=8).hexdigest()


@lru_cache(maxsize=1 << 16)
def _sig_id(key: tuple[Any, ...]) -> str:
    return hashlib.blake2b(repr(key).encode(), digest_size=6).hexdigest()


def _signatures(ranks: list[RankData], launches: list[Launch], keys: list[tuple[Any, ...]]) -> Signatures:
    forwards = count_forwards(ranks)
    groups: dict[str, list[int]] = defaultdict(list)
    for line, launch in enumerate(launches):
        groups[launch.sig_id].append(line)
    records = {(rank.rank): rank for rank in ranks}
    books = {number: _OpBook(rank, 0) for number, rank in records.items()}
    made = [
        _signature(sig_id, lines, launches, keys[lines[0]], books, forwards)
        for sig_id, lines in groups.items()
    ]
    made.sort(key=lambda one: (-one.dur_us.sum, one.sig_id))
    meta = ranks[0].trace.meta
    return Signatures(
        ranks=[rank.rank for rank in ranks],
        device="gpu" if any(rank.on_gpu for rank in ranks) else "cpu",
        gpu=meta.devices[0] if meta.devices else "",
        num_sms=meta.num_sms[0] if meta.num_sms else 0,
        forwards=forwards,
        signatures=made,
    )


def count_forwards(ranks: list[RankData]) -> dict[str, int]:
    """Forwards per phase as the traces hold them: of one rank, the most if ranks differ."""
    found: Counter[str] = Counter()
    for rank in ranks:
        for phase, count in Counter(rank.marks.phases).items():
            found[phase] = max(found[phase], count)
    return dict(found)


def _signature(
    sig_id: str,
    lines: list[int],
    launches: list[Launch],
    key: tuple[Any, ...],
    books: dict[int, _OpBook],
    forwards: dict[str, int],
) -> Signature:
    first = launches[lines[0]]
    record = books[first.rank].own(first.op_id) if first.op_id >= 0 else None
    by_rank = Counter(launches[line].rank for line in lines)
    modules = Counter(books[launches[line].rank].module_of(launches[line].op_id) for line in lines)
    runs = forwards.get(first.phase, 0) or sum(forwards.values()) or 1
    return Signature(
        sig_id=sig_id,
        kernel=short_name(first.name),
        name=first.name,
        class_=first.class_,
        kind=first.kind,
        grid=first.grid,
        block=first.block,
        smem_bytes=first.smem_bytes,
        regs=first.regs,
        bytes=first.bytes,
        op=record.name if record else "",
        overload=record.overload if record else None,
        args=record.args if record else [],
        arg_src=_source(record),
        phase=first.phase,
        count=len(lines),
        count_per_forward=len(lines) / len(by_rank) / runs,
        count_by_rank=dict(sorted(by_rank.items())),
        modules={path: n for path, n in modules.most_common() if path},
        dur_us=spread(np.array([launches[line].dur_us for line in lines])),
        launches=lines,
    )


def _source(record: OpRecord | None) -> str:
    if record is None:
        return ""
    return "recorder" if record.recorded >= 0 else "trace" if record.args else "none"


def spread(dur_us: np.ndarray) -> Durations:
    """Sum, extremes and percentiles of durations (n,)."""
    p10, median, p90, p95 = np.percentile(dur_us, [10, 50, 90, 95]).tolist()
    return Durations(
        sum=float(dur_us.sum()),
        min=float(dur_us.min()),
        p10=p10,
        median=median,
        p90=p90,
        p95=p95,
        max=float(dur_us.max()),
    )


def unique_table(found: Signatures, launches: list[Launch]) -> pd.DataFrame:
    """`unique_kernels.csv`: a row a signature, most time first."""
    total_us = sum(one.dur_us.sum for one in found.signatures) or 1.0
    rows = []
    for one in found.signatures:
        streams = sorted({(launches[line].device, launches[line].stream) for line in one.launches})
        rows.append(
            {
                "sig_id": one.sig_id,
                "kernel": one.kernel,
                "class": one.class_,
                "op": one.op,
                "overload": one.overload or "",
                "arg_summary": summary(one.args),
                "phase": one.phase,
                **dict(zip(_GEOMETRY[:6], (*one.grid, *one.block), strict=True)),
                "smem_bytes": one.smem_bytes,
                "regs": one.regs,
                "count": one.count,
                "count_per_forward": one.count_per_forward,
                "ranks": _ranks_text(one.count_by_rank),
                **{f"dur_{name}_us": getattr(one.dur_us, name) for name in Durations.__struct_fields__},
                "time_share": one.dur_us.sum / total_us,
                "arg_src": one.arg_src,
                "kind": one.kind,
                "bytes": one.bytes,
                "streams": " ".join(f"{device}:{stream}" for device, stream in streams),
                "module": next(iter(one.modules), ""),
                "modules": len(one.modules),
                "name": one.name,
            }
        )
    table: pd.DataFrame = pd.DataFrame(rows, columns=list(UNIQUE_COLUMNS))
    return table


def _ranks_text(counts: dict[int, int]) -> str:
    """`0 1` where every rank has as many, else `0:96 1:95`."""
    even = len(set(counts.values())) == 1
    return " ".join(str(rank) if even else f"{rank}:{count}" for rank, count in counts.items())


def bucketed(unique: pd.DataFrame) -> pd.DataFrame:
    """The table without arguments, geometry and bytes in the key: a cache that grows by a token a step fits one row.

    Durations: sum, least and greatest are exact; the percentiles of a bucket are not known from its rows and left out.
    """
    keys = ["kernel", "class", "op", "overload", "phase", "kind"]
    groups = unique.groupby(keys, sort=False, dropna=False)
    found = groups.agg(
        signatures=("sig_id", "size"),
        count=("count", "sum"),
        count_per_forward=("count_per_forward", "sum"),
        dur_sum_us=("dur_sum_us", "sum"),
        dur_min_us=("dur_min_us", "min"),
        dur_max_us=("dur_max_us", "max"),
        time_share=("time_share", "sum"),
        arg_summary=("arg_summary", "first"),
    ).reset_index()
    table: pd.DataFrame = found.sort_values("dur_sum_us", ascending=False, kind="stable", ignore_index=True)
    return table


def uneven(found: Signatures) -> list[str]:
    """Ranks that launched different numbers of the same thing, in a sentence; they should not under tensor parallel."""
    if len(found.ranks) < 2:
        return []
    odd = [
        one
        for one in found.signatures
        if one.phase in MARKED
        and (len(one.count_by_rank) != len(found.ranks) or len(set(one.count_by_rank.values())) > 1)
    ]
    if not odd:
        return []
    worst = ", ".join(f"{one.kernel} ({_ranks_text(one.count_by_rank)})" for one in odd[:3])
    return [
        f"{len(odd)} of {len(found.signatures)} distinct launches are not equally many on all ranks: {worst}"
    ]


def owners_missing(launches: list[Launch], ranks: list[RankData]) -> list[str]:
    """How many launches have no op, in launches and in time: graphs hide theirs, and so does what began before."""
    orphans = [one.dur_us for one in launches if one.op_id < 0]
    if not orphans:
        return []
    share = 100 * sum(orphans) / (sum(one.dur_us for one in launches) or 1.0)
    graphs = any(
        "cudaGraphLaunch" in rank.trace.strings or "hipGraphLaunch" in rank.trace.strings for rank in ranks
    )
    why = "CUDA graphs hide them" if graphs else "their ops began outside the recording, or were not recorded"
    return [f"{len(orphans)} of {len(launches)} launches ({share:.1f} % of the time) have no op: {why}"]
