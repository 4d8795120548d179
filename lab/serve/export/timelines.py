"""Write timelines for Perfetto and chrome://tracing: all ranks of one step on one clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from lab.core.words import ranks_text
from lab.errors import BadDataError, LabError
from lab.recordings.as_trace import traces_of
from lab.recordings.cache import load_trace
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import holes
from lab.recordings.load import kind_of, look, read_found
from lab.recordings.merge import merge_json, merge_pftrace
from lab.recordings.merge.output import CPU_PIDS, RANK_PIDS, packed
from lab.recordings.pairing import pair_collectives
from lab.recordings.tables import Table, Trace
from lab.recordings.views.collectives import collective_instances

LEFT_OUT, LACKS, ABSENT = "left out:", "missing from the recording", "no recording of"
MISSING = (LEFT_OUT, LACKS, ABSENT)  # prefixes of notes that make an export incomplete


@dataclass(frozen=True)
class Ranks:
    """Traces by rank, what to add to each one's times (ns), and sentences about what was left out."""

    traces: dict[int, Trace]
    offsets_ns: dict[int, int]
    notes: list[str]


def write_perfetto(paths: Sequence[Path], target: Path) -> list[str]:
    """All ranks of these recordings in one gzipped pftrace; returns sentences about what is not in it."""
    ranks = read_ranks(paths)
    named = {Path(f"rank{rank}"): trace for rank, trace in ranks.traces.items()}
    merged = merge_pftrace(
        [(rank, Path(f"rank{rank}")) for rank in ranks.traces],
        target,
        load=named.__getitem__,
        offsets_ns=ranks.offsets_ns,
    )
    return _once([*ranks.notes, *merged.problems])


def write_chrome(paths: Sequence[Path], target: Path) -> list[str]:
    """The same as gzipped Trace Event JSON; traces of torch.profiler keep every event that they have."""
    if all(_is_kineto(path) for path in paths):
        ranks = read_ranks(paths)
        merged = merge_json([(None, path) for path in paths], target, offsets_ns=ranks.offsets_ns)
        dropped = [f"{count} events not written: {why}" for why, count in merged.dropped.items()]
        return _once([*ranks.notes, *merged.problems, *dropped])
    ranks = read_ranks(paths)
    with packed(target) as file:
        _write_events(ranks, file)
    return ranks.notes


def _once(notes: list[str]) -> list[str]:
    return list(dict.fromkeys(notes))


def _is_kineto(path: Path) -> bool:
    with look(path) as recording:
        return kind_of(recording).name == "kineto"


def _write_events(ranks: Ranks, file: IO[bytes]) -> None:
    file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    separator = b""
    for rank, trace in sorted(ranks.traces.items()):
        for event in _events(trace, rank, ranks.offsets_ns.get(rank, 0)):
            file.write(separator + msgspec.json.encode(event))
            separator = b",\n"
    file.write(b"\n]}\n")


def _events(trace: Trace, rank: int, offset_ns: int) -> Iterator[dict[str, object]]:
    host = RANK_PIDS * rank + CPU_PIDS
    for device in np.unique(trace.kernels.device).tolist():
        pid = RANK_PIDS * rank + max(device, 0)
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"rank {rank} GPU {device}"}}
    yield {"ph": "M", "name": "process_name", "pid": host, "args": {"name": f"rank {rank} CPU"}}
    kernels = trace.kernels
    pids = (RANK_PIDS * rank + np.maximum(kernels.device, 0)).tolist()
    for event, pid, tid, correlation, size in zip(
        _slices(trace, kernels, offset_ns, "gpu"),
        pids,
        kernels.stream.tolist(),
        kernels.correlation.tolist(),
        kernels.bytes.tolist(),
        strict=True,
    ):
        args = {"stream": tid, "correlation": correlation, **({"bytes": size} if size >= 0 else {})}
        yield {**event, "pid": pid, "tid": tid, "args": args}
    for table, category in ((trace.ops, "cpu_op"), (trace.runtime, "api"), (trace.ranges, "range")):
        for event, tid in zip(_slices(trace, table, offset_ns, category), table.tid.tolist(), strict=True):
            yield {**event, "pid": host, "tid": tid}


def _slices(trace: Trace, table: Table, offset_ns: int, category: str) -> Iterator[dict[str, object]]:
    names = trace.text(table.name_id).tolist()
    # Split, because nanoseconds since 1970 do not fit a float.
    starts = (table.ts_ns + offset_ns).tolist()
    for name, start_ns, dur_ns in zip(names, starts, table.dur_ns.tolist(), strict=True):
        micros = msgspec.Raw(f"{start_ns // 1000}.{start_ns % 1000:03}".encode())
        yield {"ph": "X", "cat": category, "name": name, "ts": micros, "dur": dur_ns / 1000}


def read_ranks(paths: Sequence[Path]) -> Ranks:
    """Read every process of these recordings. Raises what the reader raises for a single one.

    One of several that cannot be read is a note; BadDataError where none can.
    """
    traces: dict[int, Trace] = {}
    notes: list[str] = []
    for path in paths:
        try:
            processes = _traces(path)
        except LabError as error:
            if len(paths) == 1:
                raise
            notes.append(f"left out: {path.name}: {error.what}")
            continue
        for trace in processes:
            rank = trace.meta.rank
            if rank is None:
                rank = max(traces, default=-1) + 1
                if len(paths) > 1 or len(processes) > 1:
                    notes.append(f"{path.name} names no rank: called rank {rank}")
            if rank in traces:
                notes.append(f"left out: {path.name}: another recording is of rank {rank}, too")
                continue
            traces[rank] = trace
            notes += [f"{path.name}: {text}" for text in trace.problems]
            notes += [f"{LACKS} {path.name}: {text}" for text in sentences(holes(trace.lacks))]
    if not traces:
        raise BadDataError(
            "none of the recordings can be read", where=paths[0].parent, fix="; ".join(notes[:3])
        )
    missing = _missing(traces)
    if missing:
        notes.append(f"{ABSENT} {ranks_text(missing, most=16)}")
    return Ranks(traces, _offsets(traces), notes)


def _traces(path: Path) -> list[Trace]:
    with look(path) as recording:
        if kind_of(recording).name != "kineto":
            return traces_of(read_found(recording))
    return [load_trace(path)]


def _missing(traces: dict[int, Trace]) -> list[int]:
    size = max((trace.meta.world_size or 0 for trace in traces.values()), default=0)
    return [rank for rank in range(min(size, 1 << 16)) if rank not in traces]


def _offsets(traces: dict[int, Trace]) -> dict[int, int]:
    if len(traces) < 2:
        return {}
    collectives = {rank: collective_instances(trace) for rank, trace in traces.items()}
    return dict(pair_collectives(collectives).offsets_ns)
