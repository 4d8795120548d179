"""Slices of a Perfetto file as the events of torch's JSON, and these as a capture."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.core.words import plural
from lab.errors import BadDataError, writing
from lab.recordings.capture import Capture
from lab.recordings.kineto import read_kineto
from lab.recordings.kineto.capture import from_kineto
from lab.recordings.kineto.columns import TABLE_OF
from lab.recordings.kineto.events import Args
from lab.recordings.lacks import Lack
from lab.recordings.pftrace.trace import Slices, read_slices
from lab.recordings.sqlite import lookup
from lab.recordings.tables import Table

_ROCPROF = re.compile(r"kernel_dispatch|memory_copy|(hip|hsa|rccl|rocdecode|rocjpeg|ompt|marker)_\w*api\w*")
_MERGED = re.compile(r"\[R(\d+)\] rank \d+ (GPU|CPU) (\d{1,18}\Z)?")  # lab.recordings.merge.pftrace
# Names of arguments in render stages and in lab's merges -> those in torch's JSON.
_JSON_NAMES = {
    "external_id": "External id",
    "sequence": "Sequence number",
    "stream id": "stream",
    "device id": "device",
    "registers_per_thread": "registers per thread",
    "shared_mem_dynamic": "shared memory",
    "dims": "Input Dims",
    "types": "Input type",
    "strides": "Input Strides",
    "collective": "Collective name",
    "in_nelems": "In msg nelems",
    "out_nelems": "Out msg nelems",
    "group_size": "Group size",
    "pg_name": "Process Group Name",
    "pg_desc": "Process Group Description",
    "pg_ranks": "Process Group Ranks",
    "seq": "Seq",
}
# Without the indices of events: instants have such, too, and are not read.
_KINDS: dict[str, Any] = {
    field.encode_name: field.type for field in msgspec.structs.fields(Args) if field.name != "ev_idx"
}
_NUMBERS = {name for name, kind in _KINDS.items() if kind in (int, int | str)}
_SIZES = {f"{size}_{axis}": (size, index) for size in ("grid", "block") for index, axis in enumerate("xyz")}
_LOSSES = (
    ("dropped", "packets", "gaps in the packets of a sequence, as Perfetto marked them"),
    ("lost", "buffer", "packets or chunks that Perfetto's own statistics count as lost"),
    ("unpaired", "pairs", "begins or ends of slices without their partner"),
    ("stages", "stages", "GPU render stages of kinds that lab does not know"),
)
_TOGETHER = 10_000  # events that are written at once
_ENCODER = msgspec.json.Encoder()
Event = dict[str, Any]


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
                file.write(b"".join(b"," + _ENCODER.encode(event) for event in chunk))
            file.write(b"]}")
        capture = from_kineto(read_kineto(target))
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
    used, texts = np.unique(slices.columns["category_id"]).tolist(), slices.strings.texts
    names = [texts[category] for category in used if category >= 0]
    if any(map(_ROCPROF.fullmatch, names)):
        raise BadDataError(
            "a Perfetto file of rocprofv3: it cuts kernels that overlap and may have dropped others",
            location=path,
            fix="record with rocprofv3 --output-format json or rocpd, and give lab that file",
        )
    if any(TABLE_OF.get(name.lower(), "") for name in names if name):
        return
    if not len(slices.columns["start_ns"]):
        raise BadDataError("a Perfetto file without slices", location=path, fix="record it again")
    shown = ", ".join(sorted(filter(None, names))[:5]) or "none"
    raise BadDataError(
        f"a Perfetto file of no profiler that lab knows (categories: {shown[:200]})",
        location=path,
        fix="give a .pftrace of torch.profiler, or one that `lab gemm merge` wrote",
    )


def _events(slices: Slices) -> Iterator[Event]:
    """The slices with a name as complete events, and the names of processes and threads."""
    for track in slices.tracks:
        for kind, name in (("process_name", track.process), ("thread_name", track.name)):
            if name and track.pid >= 0 and (kind == "process_name" or track.tid >= 0):
                yield {"ph": "M", "name": kind, "pid": track.pid, "tid": track.tid, "args": {"name": name}}
    names = [*slices.strings.texts, ""]
    rows = zip(*(column.tolist() for column in slices.columns.values()), strict=True)
    for columns, args in zip(rows, _arguments(slices), strict=True):
        start_ns, end_ns, name, category, pid, tid, flow = columns
        if name < 0:
            continue  # it only frames others
        table = TABLE_OF.get(names[category].lower(), "")
        if flow >= 0 and table in ("kernels", "runtime"):
            args.setdefault("correlation", flow)
        yield {
            "ph": "X",
            "cat": names[category],
            "name": names[name],
            "pid": pid,
            "tid": tid,
            "ts": _microseconds(start_ns),
            "dur": _microseconds(end_ns - start_ns),
            "args": args,
        }


def _microseconds(time_ns: int) -> msgspec.Raw:
    return msgspec.Raw(f"{time_ns // 1000}.{time_ns % 1000:03d}".encode())


def _arguments(slices: Slices) -> Iterator[dict[str, Any]]:
    """The arguments of each slice (n,) under their names in torch's JSON."""
    texts = [*slices.strings.texts, ""]
    names = [_JSON_NAMES.get(text, text) for text in texts]
    order = np.argsort(slices.arguments["row"], kind="stable")
    columns = (slices.arguments[key][order].tolist() for key in ("row", "key_id", "number", "text_id"))
    rows = zip(*columns, strict=True)
    end = (-1, -1, -1, -1)
    cache: dict[tuple[int, int], Any] = {}
    row, key, number, text = next(rows, end)
    for index in range(len(slices.columns["start_ns"])):
        args: dict[str, Any] = {}
        while row == index:
            name = names[key]
            if name in _SIZES:
                size, axis = _SIZES[name]
                args.setdefault(size, [-1, -1, -1])[axis] = number
            elif name in _NUMBERS and text < 0:
                args[name] = number
            elif name in _KINDS:
                if (key, text) not in cache:
                    cache[key, text] = _value(_KINDS[name], texts[text])
                if (value := cache[key, text]) is not None:
                    args[name] = value
            row, key, number, text = next(rows, end)
        yield args


def _value(kind: Any, text: str) -> Any:
    """A text as JSON has an argument of this kind; None for what it cannot be. Numbers may be digits."""
    if kind in (int, int | str):
        digits = text.strip()
        return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None
    if kind is str:
        return text
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    if kind is msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode(value))
    is_size = isinstance(value, list) and len(value) == 3 and all(type(part) is int for part in value)
    return value if is_size else None


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
