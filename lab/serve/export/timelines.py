"""Timelines for Perfetto and chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from lab.recordings.load import kind_of, look
from lab.recordings.merge import merge_json, merge_pftrace
from lab.recordings.merge.output import CPU_PIDS, RANK_PIDS, packed
from lab.recordings.tables import Table, Trace
from lab.serve.export.ranks import Ranks, read_ranks


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
    with look(path) as found:
        return kind_of(found).name == "kineto"


def _write_events(ranks: Ranks, file: IO[bytes]) -> None:
    file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    first = True
    for rank, trace in sorted(ranks.traces.items()):
        for event in _events(trace, rank, ranks.offsets_ns.get(rank, 0)):
            file.write((b"" if first else b",\n") + msgspec.json.encode(event))
            first = False
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
