"""Ranges onto kernels: lab's sweep against the plain SQL join of launch and range, CPU seconds and memory.

The capture is generated: two threads, steps of nested ranges (depth 6, 2.9 ranges per kernel), backward's
kernels on a worker. The join is the one that a person would write: unindexed as nsys exports it, and with the
two indexes that help it. Its time grows with ranges x calls, so it is timed on smaller captures of the same
kind, and lab on those, too.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from bench.table import Row, measured
from lab.recordings.capture import API_COLUMNS, OPS_COLUMNS, RANGE_COLUMNS, SYNC_COLUMNS, Capture, filled
from lab.recordings.projection import project
from lab.recordings.tables import Table, concat

KERNELS = 1_000_000
JOIN_KERNELS = (2_000, 4_000, 8_000)
INDEXED_KERNELS = (8_000, 16_000)
PER_STEP = 1_000
MAIN, WORKER = 1, 2
NAMES = [
    "warmup",
    *(f"step_{i}" for i in range(20_000)),
    "forward",
    "backward",
    "optimizer_step",
    "block",
    "attention",
    "aten::linear",
    "aten::mm",
    "MmBackward0",
    "gemm",
    "add",
]

JOIN = """
SELECT n.rowid, COUNT(*), SUM(k.end - k.start) FROM NVTX_EVENTS n
JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.globalTid = n.globalTid AND n.start <= r.start AND n.end >= r.end
JOIN CUPTI_ACTIVITY_KIND_KERNEL k
    ON k.correlationId = r.correlationId AND k.globalPid = r.globalTid & ~0xFFFFFF
GROUP BY n.rowid
"""
INDEXES = (
    "CREATE INDEX calls ON CUPTI_ACTIVITY_KIND_RUNTIME (globalTid, start)",
    "CREATE INDEX kernels ON CUPTI_ACTIVITY_KIND_KERNEL (correlationId)",
)


def generated(num_kernels: int) -> Capture:
    """A training run of `num_kernels` kernels: of each step half forward, half backward on the worker."""
    calls = np.arange(num_kernels, dtype=np.int64) * 1_000
    in_step = np.arange(num_kernels) % PER_STEP
    tid = np.where(in_step < PER_STEP // 2, MAIN, WORKER)
    api = {
        "start_ns": calls + 300,
        "end_ns": calls + 400,
        "pid": np.ones(num_kernels),
        "tid": tid,
        "corr": np.arange(num_kernels),
        "name_id": np.full(num_kernels, -1),
    }
    kind = np.where(np.arange(num_kernels) % 3 == 0, "gemm", "add")
    ops = {
        "start_ns": calls + 900,
        "end_ns": calls + 1_500,
        "kind": np.zeros(num_kernels),
        "pid": np.ones(num_kernels),
        "corr": np.arange(num_kernels),
        "name_id": _ids(kind),
        "device": np.zeros(num_kernels),
    }
    return Capture(
        source=Path("generated"),
        collector="nsys",
        version=None,
        schema=None,
        ops=filled(OPS_COLUMNS, num_kernels, ops),
        api=filled(API_COLUMNS, num_kernels, api),
        ranges=_ranges(num_kernels, calls, tid),
        sync=concat([], SYNC_COLUMNS),
        strings=NAMES,
        devices=(),
        problems=[],
    )


def _ids(names: np.ndarray) -> np.ndarray:
    used, which = np.unique(names, return_inverse=True)
    return np.array([NAMES.index(name) for name in used])[which]


def _ranges(num_kernels: int, calls: np.ndarray, tid: np.ndarray) -> Table:
    """step > phase > block of 20 > attention of 5 > two operators per kernel; on the worker two operators."""
    parts: list[tuple[np.ndarray, int, Any, list[str]]] = []
    steps = calls[::PER_STEP]
    labels = [NAMES[0] if i == 0 else f"step_{i - 1}" for i in range(len(steps))]
    parts.append((steps, PER_STEP * 1_000 - 1, MAIN, labels))
    parts.append((steps + 50, PER_STEP // 2 * 1_000 - 55, MAIN, ["forward"] * len(steps)))
    parts.append(
        (steps + PER_STEP // 2 * 1_000, PER_STEP // 2 * 1_000 - 100, MAIN, ["backward"] * len(steps))
    )
    for every, name in ((20, "block"), (5, "attention")):
        at = calls[::every][tid[::every] == MAIN]
        parts.append((at + 60 + 100 // every, every * 1_000 - 50 - 500 // every, MAIN, [name] * len(at)))
    for offset, forward, backward in ((100, "aten::linear", "MmBackward0"), (200, "aten::mm", "aten::mm")):
        for thread, name in ((MAIN, forward), (WORKER, backward)):
            at = calls[tid == thread]
            parts.append((at + offset, 900 - 2 * offset, thread, [name] * len(at)))
    more = calls[: max(0, 3 * num_kernels - sum(len(part[0]) for part in parts))]
    where = np.where(tid[: len(more)] == MAIN, MAIN, WORKER)
    parts.append((more + 250, 200, where, ["aten::mm"] * len(more)))
    columns = {
        "start_ns": np.concatenate([part[0] for part in parts]),
        "end_ns": np.concatenate([part[0] + part[1] for part in parts]),
        "tid": np.concatenate([np.broadcast_to(part[2], len(part[0])) for part in parts]),
        "name_id": np.concatenate([_ids(np.array(part[3])) for part in parts]),
    }
    count = len(columns["start_ns"])
    fixed = {"pid": np.ones(count), "kind": np.zeros(count), "text_id": columns["name_id"]}
    return filled(RANGE_COLUMNS, count, columns | fixed)


def write(capture: Capture, path: Path) -> Path:
    """The same capture as an export of nsys, unindexed as nsys leaves it."""
    pid = 1 << 48 | 1 << 24
    ops, api, ranges = capture.ops, capture.api, capture.ranges
    tables: dict[str, tuple[str, list[Any]]] = {
        "StringIds": ("id value", [np.arange(len(NAMES)), NAMES]),
        "META_DATA_EXPORT": ("name value", [["EXPORT_SCHEMA_VERSION"], ["3.20.3"]]),
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            "start end deviceId contextId streamId correlationId globalPid demangledName",
            [
                ops.start_ns,
                ops.end_ns,
                *[np.zeros(len(ops), dtype=int)] * 3,
                ops.corr,
                np.full(len(ops), pid),
                ops.name_id,
            ],
        ),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (
            "start end globalTid correlationId nameId",
            [api.start_ns, api.end_ns, pid | api.tid, api.corr, np.zeros(len(api), dtype=int)],
        ),
        "NVTX_EVENTS": (
            "start end eventType globalTid text",
            [
                ranges.start_ns,
                ranges.end_ns,
                np.full(len(ranges), 59),
                pid | ranges.tid,
                capture.text(ranges.name_id),
            ],
        ),
    }
    with closing(sqlite3.connect(path)) as connection:
        for table, (columns, values) in tables.items():
            connection.execute(f"CREATE TABLE {table} ({columns.replace(' ', ', ')})")
            plain = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
            marks = ", ".join("?" * len(values))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", zip(*plain, strict=True))
        connection.commit()
    return path


def whole(num_kernels: int) -> None:
    """In a process of its own, for its peak memory: generate, project, say."""
    capture = generated(num_kernels)
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.process_time()
    projection = project(capture)
    seconds = time.process_time() - started
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cross = int(projection.coverage.num_kernels[1])
    told(
        what="ranges onto kernels",
        size=f"{num_kernels:,} kernels x {len(capture.ranges):,} ranges",
        cost=f"{seconds:.2f} CPU s, {cross:,} kernels given across threads",
        memory_mb=peak_mb - before_mb,
    )


def from_file(num_kernels: int) -> None:
    """The same with the reader: SQLite in, projection out."""
    from lab.recordings.nsys import load

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.sqlite"
        subprocess.run(
            [
                sys.executable,
                "-c",
                f"from pathlib import Path; from bench import nsys_projection as b; "
                f"b.write(b.generated({num_kernels}), Path({str(path)!r}))",
            ],
            check=True,
        )
        started = time.process_time()
        capture = load(path)
        read = time.process_time() - started
        project(capture)
        seconds = time.process_time() - started
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        told(
            what="ranges onto kernels, from an nsys export",
            size=f"{path.stat().st_size / 1e6:,.0f} MB",
            cost=f"{seconds:.2f} CPU s, {read:.2f} of them reading",
            memory_mb=peak_mb,
        )


def told(**row: Any) -> None:
    """One row as a line for the process that asked: this one is measured."""
    print(json.dumps(row))


def against_join(num_kernels: int, indexed: bool) -> None:
    """Both on one capture, results compared: the join's rows are lab's ranges with `attribution="nsys"`."""
    capture = generated(num_kernels)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(sqlite3.connect(write(capture, Path(folder) / "a.sqlite"))) as connection,
    ):
        started = time.process_time()
        for statement in INDEXES if indexed else ():
            connection.execute(statement)
        joined = {row: (count, total) for row, count, total in connection.execute(JOIN)}
        join_s = time.process_time() - started
    started = time.process_time()
    projection = project(capture, "nsys")
    sweep_s = time.process_time() - started
    instances = projection.instances
    ours = {
        row + 1: (int(instances.num_kernels[row]), int(instances.kernel_ns[row]))
        for row in np.flatnonzero(instances.num_kernels).tolist()
    }
    if ours != joined:
        raise SystemExit("the join and the sweep disagree")
    measured(
        Row(
            "ranges onto kernels",
            size=f"{num_kernels:,} kernels",
            cost=f"{sweep_s:.4f} CPU s",
            peer=f"SQL join, {'with indexes' if indexed else 'plain'} {join_s:.3f} CPU s",
            ratio=join_s / sweep_s,
        )
    )


def main() -> None:
    for size in (KERNELS // 4, KERNELS):
        _alone(f"whole({size})")
    _alone(f"from_file({KERNELS})")
    for size in JOIN_KERNELS:
        against_join(size, indexed=False)
    for size in INDEXED_KERNELS:
        against_join(size, indexed=True)


def _alone(call: str) -> None:
    program = f"from bench import nsys_projection as b; b.{call}"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    measured(Row(**json.loads(done.stdout.splitlines()[-1])))
