"""A small trace, and a reader of traces that is as plain as can be."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

from lab.recordings.capture import Capture
from tests.tracegen import TraceWriter, training_step

SMALL = 2048  # bytes per piece, so that small files are cut many times

TABLES = (
    "ops",
    "operators",
    "api",
    "annotations",
    "gpu_ranges",
    "collectives",
    "comm_ops",
    "thread_names",
    "process_names",
)


def some_trace(vendor: str = "nvidia") -> TraceWriter:
    writer = TraceWriter(rank=3, world_size=8, vendor=vendor)
    for number in range(12):
        training_step(writer, number, 1000.125 + 50 * number)
    writer.kernel('void f<a::{lambda(int)#1}, {lambda(int)#2}>("quoted \\"")', 1700.001, 1.002)
    return writer


def plain_read(path: Path) -> dict[str, list[tuple]]:
    """The twin: json.load of everything, Decimal times, one category after the other."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_float=Decimal)
    base = document.get("baseTimeNanoseconds", 0)
    rows: dict[str, list[tuple]] = {name: [] for name in ("ops", "operators", "api", "ranges")}
    tables = {
        "kernel": "ops",
        "gpu_memcpy": "ops",
        "gpu_memset": "ops",
        "cpu_op": "operators",
        "cuda_runtime": "api",
        "cuda_driver": "api",
        "user_annotation": "ranges",
        "gpu_user_annotation": "ranges",
    }
    for event in document["traceEvents"]:
        table = tables.get(event.get("cat"))
        if event.get("ph") == "X" and table:
            ts, dur = (int(Decimal(event.get(key, 0)) * 1000) for key in ("ts", "dur"))
            rows[table].append((base + ts, dur, event["name"]))
    return {name: sorted(found) for name, found in rows.items()}


def as_rows(trace: Capture) -> dict[str, list[tuple]]:
    tables = {
        "ops": [trace.ops],
        "operators": [trace.operators],
        "api": [trace.api],
        "ranges": [trace.annotations, trace.gpu_ranges],
    }
    return {
        name: sorted(
            row
            for table in parts
            for row in zip(
                table.start_ns.tolist(), table.dur_ns.tolist(), trace.text(table.name_id), strict=True
            )
        )
        for name, parts in tables.items()
    }


def same(a: Capture, b: Capture) -> bool:
    return a.meta == b.meta and all(
        values(a, name, column) == values(b, name, column)
        for name in TABLES
        for column in getattr(a, name).as_dict()
    )


def values(trace: Capture, name: str, column: str) -> list:
    found = getattr(getattr(trace, name), column)
    if column in ("pid", "tid"):
        return [trace.strings[-2 - place] if place < -1 else place for place in found.tolist()]
    return (trace.text(found) if column.endswith("_id") and column != "external_id" else found).tolist()
