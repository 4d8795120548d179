"""Slices of a Perfetto file as the events of torch's JSON, and these as a capture."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from lab.core.words import plural
from lab.errors import BadDataError, writing
from lab.recordings.capture import Capture
from lab.recordings.kineto import read_kineto
from lab.recordings.kineto.columns import TABLE_OF
from lab.recordings.lacks import Lack
from lab.recordings.pftrace.trace import Slices, read_slices
from lab.recordings.sqlite import lookup
from lab.recordings.tables import Table

_ROCPROF = re.compile(r"kernel_dispatch|memory_copy|(hip|hsa|rccl|rocdecode|rocjpeg|ompt|marker)_\w*api\w*")
_MERGED = re.compile(r"\[R(\d+)\] rank \d+ (GPU|CPU) (\d{1,18}\Z)?")  # lab.recordings.merge.pftrace
_LOSSES = (
    ("dropped", "packets", "gaps in the packets of a sequence, as Perfetto marked them"),
    ("lost", "buffer", "packets or chunks that Perfetto's own statistics count as lost"),
    ("unpaired", "pairs", "begins or ends of slices without their partner"),
    ("stages", "stages", "GPU render stages of kinds that lab does not know"),
)
_TOGETHER = 10_000  # events that are written at once


def load(path: Path | str) -> Capture:
    """Read a Perfetto file of torch.profiler or of lab's own merge, plain or gzipped.

    Raises BadDataError where it is truncated, damaged, or of a program whose file is not a whole recording.
    """
    path = Path(path)
    slices = read_slices(path)
    _check_writer(slices, path)
    with tempfile.TemporaryDirectory(prefix="lab-pftrace-") as folder:
        target = Path(folder) / "trace.json"
        with writing(target), target.open("wb") as file:
            file.write(b'{"traceEvents":[{}')
            events = _events(slices)
            while chunk := list(islice(events, _TOGETHER)):
                file.write(b"," + b",".join(chunk))
            file.write(b"]}")
        capture = read_kineto(target)
    merged = {track.pid: match for track in slices.tracks if (match := _MERGED.match(track.process))}
    ranks = sorted({int(match[1]) for match in merged.values()})
    return replace(
        _as_recorded(capture, merged),
        source=path,
        collector="pftrace",
        info={**capture.info, "writer": "lab" if ranks else "torch.profiler"},
        problems=[*slices.problems, *capture.problems, *_notes(slices, capture.ops, ranks)],
        lacks=(*capture.lacks, *_losses(slices, len(capture.ops))),
    )


def _as_recorded(capture: Capture, merged: dict[int, re.Match[str]]) -> Capture:
    """The capture with ranks, and with the pids that the processes had before a merge numbered them anew."""
    if not merged:
        return capture
    pids = {pid: int(match[3]) for pid, match in merged.items() if match[2] == "CPU" and match[3]}

    def renamed(table: Table) -> Table:
        row = lookup(np.array([*pids]), np.arange(len(pids)), table.pid)
        return Table(
            table.as_dict() | {"pid": np.where(row < 0, table.pid, np.array([*pids.values(), -1])[row])}
        )

    processes = tuple(
        replace(process, pid=pids.get(process.pid, process.pid), rank=int(merged[process.pid][1]), name=None)
        if process.pid in merged
        else process
        for process in capture.processes
    )
    ops, api, ranges = map(renamed, (capture.ops, capture.api, capture.ranges))
    return replace(capture, ops=ops, api=api, ranges=ranges, processes=processes)


def _check_writer(slices: Slices, path: Path) -> None:
    if any(map(_ROCPROF.fullmatch, slices.categories)):
        raise BadDataError(
            "a Perfetto file of rocprofv3: it cuts kernels that overlap and may have dropped others",
            location=path,
            fix="record with rocprofv3 --output-format json or rocpd, and give lab that file",
        )
    if any(TABLE_OF.get(name.lower(), "") for name in slices.categories if name):
        return
    if not slices.events:
        raise BadDataError("a Perfetto file without slices", location=path, fix="record it again")
    shown = ", ".join(sorted(filter(None, slices.categories))[:5]) or "none"
    raise BadDataError(
        f"a Perfetto file of no profiler that lab knows (categories: {shown[:200]})",
        location=path,
        fix="give a .pftrace of torch.profiler, or one that `lab gemm merge` wrote",
    )


def _events(slices: Slices) -> Iterator[bytes]:
    """The names of processes and threads, and the slices as complete events."""
    for track in slices.tracks:
        for kind, name in (("process_name", track.process), ("thread_name", track.name)):
            if name and track.pid >= 0 and (kind == "process_name" or track.tid >= 0):
                yield msgspec.json.encode(
                    {"ph": "M", "name": kind, "pid": track.pid, "tid": track.tid, "args": {"name": name}}
                )
    columns = (slices.start_ns, slices.end_ns, slices.pid, slices.tid)
    rows = zip(slices.events, *(column.tolist() for column in columns), strict=True)
    for event, start_ns, end_ns, pid, tid in rows:
        times = f'"ts":{_microseconds(start_ns)},"dur":{_microseconds(end_ns - start_ns)}'
        yield event[:-1] + f',"pid":{pid},"tid":{tid},{times}}}'.encode()


def _microseconds(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _notes(slices: Slices, ops: Table, ranks: list[int]) -> Iterator[str]:
    if ranks:
        yield (
            f"a file that lab merged from the traces of {plural(len(ranks), 'rank')} "
            f"({', '.join(map(str, ranks))}): registers, shared memory, values of arguments and clocks "
            "before the merge are only in the traces"
        )
    if slices.counts["read_stages"] and (touching := _touching(ops)):
        yield (
            f"{plural(touching, 'operation')} of {len(ops)} end exactly where the next one of the stream "
            "begins: torch cuts what overlaps in GPU render stages, so times of those may be cut short"
        )
    for key, noun in (("samples", "sample"), ("instants", "instant")):
        if count := slices.counts[key]:
            yield f"{plural(count, noun)}{' of GPU counters' if key == 'samples' else ''} left out"


def _losses(slices: Slices, num_ops: int) -> Iterator[Lack]:
    """What the file itself says was lost on the way into it."""
    for key, rule, text in _LOSSES:
        if count := slices.counts[key]:
            yield Lack("gpu", "hole", rule, -1, count, num_ops + count, None, f"{count} {text}")


def _touching(ops: Table) -> int:
    order = np.lexsort((ops.start_ns, ops.stream, ops.device))
    stream, device = ops.stream[order], ops.device[order]
    same = (stream[1:] == stream[:-1]) & (device[1:] == device[:-1])
    return int((same & (ops.end_ns[order][:-1] == ops.start_ns[order][1:])).sum())
