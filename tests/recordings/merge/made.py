"""Traces of ranks, and the merged file read back."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from lab.recordings.merge import Ranks, merge_captures, read_ranks
from tests.tracegen import BASE_NS, TraceWriter, dump, training_step


def rank_trace(
    folder: Path, rank: int, *, layout: str = "compact", base_ns: int = BASE_NS, **more: Any
) -> Path:
    """Two steps of training on one rank, with flows: complete ones, one without end, one without start."""
    writer = TraceWriter(rank=rank, world_size=2, **more)
    training_step(writer, 1, 100)
    training_step(writer, 2, 200)
    document = writer.document()
    events = document["traceEvents"]
    for event in list(events):
        if event.get("cat") == "cuda_runtime":
            flow = {"cat": "ac2g", "name": "ac2g", "id": event["args"]["correlation"], "ts": event["ts"]}
            events.append({"ph": "s", "pid": event["pid"], "tid": event["tid"], **flow})
            events.append({"ph": "f", "bp": "e", "pid": 0, "tid": 7, **flow})
    row = {"pid": 4321, "tid": 4321, "ts": 1.5, "name": "ac2g", "cat": "ac2g"}
    events += [{"ph": "s", "id": 900, **row}, {"ph": "f", "id": 901, **row}]
    names = {"process_name": {"name": "python"}, "thread_name": {"name": "thread 4321 (python)"}}
    events += [
        {"ph": "M", "name": n, "pid": 4321, "tid": 0 if n == "process_name" else 4321, "ts": 0, "args": a}
        for n, a in names.items()
    ] * 2
    events += [{"ph": "M", "name": "process_name", "pid": 6, "tid": 0, "ts": 0, "args": {"name": "python"}}]
    events += [{"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 300.25}]
    document["baseTimeNanoseconds"] = base_ns
    path = folder / f"rank{rank}.json.gz"
    path.write_bytes(gzip.compress(dump_any(document, layout)))
    return path


def dump_any(document: dict[str, Any], layout: str) -> bytes:
    for event in document["traceEvents"]:
        event.setdefault("args", {})
    return dump(document, layout).encode()


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return document


def slices(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def merge(paths: list[Path], target: Path, *, salvage: bool = False, **options: Any) -> Ranks:
    ranks = read_ranks([(None, path) for path in paths], salvage=salvage)
    offsets_ns = options.pop("offsets_ns", ranks.offsets_ns)
    merge_captures(ranks.traces, target, offsets_ns=offsets_ns, absent=ranks.absent, **options)
    return ranks
