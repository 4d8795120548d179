"""Several recordings of one job as one: every process keeps its own index, strings are shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from lab.recordings.capture import (
    API_COLUMNS,
    NODE_COLUMNS,
    OPS_COLUMNS,
    RANGE_COLUMNS,
    SYNC_COLUMNS,
    Capture,
    Device,
    Process,
    Strings,
)
from lab.recordings.lacks import Lack
from lab.recordings.tables import Schema, Table, concat

_TEXTS = {"name_id", "text_id", "domain", "dims_id", "types_id", "strides_id", "concrete_id"} | {
    "counter_id",
    "unit_id",
}


def combined(source: Path, captures: Sequence[Capture]) -> Capture:
    """One capture of all of `captures` (one or more, of one collector); problems name the file they are of.

    A process that two files hold (info["ids"]) counts once, and a problem says so.
    """
    strings, ids_so_far, problems = Strings(), set[str](), list[str]()
    members: list[tuple[Capture, int]] = []
    start = 0
    for capture in captures:
        ids = set(capture.info.get("ids", "").split())
        problems += [f"{capture.source.name}: {text}" for text in capture.problems]
        if ids & ids_so_far:
            problems.append(f"{capture.source.name}: left out, because another file holds the same process")
            continue
        ids_so_far |= ids
        members.append((capture, start))
        start += len(capture.processes)
    translate = [np.array([*map(strings.id, capture.strings), -1], dtype=np.int32) for capture, _ in members]

    def together(schema: Schema, of: Callable[[Capture], Table]) -> Table:
        parts = zip(members, translate, strict=True)
        return concat([_moved(of(capture), start, ids) for (capture, start), ids in parts], schema)

    devices: list[Device] = []
    lacks: list[Lack] = []
    processes: list[Process] = []
    for capture, start in members:
        devices += [replace(device, process=_shifted(device.process, start)) for device in capture.devices]
        lacks += [
            msgspec.structs.replace(lack, process=_shifted(lack.process, start)) for lack in capture.lacks
        ]
        processes += capture.processes
    leader = members[0][0]
    return Capture(
        source=source,
        collector=leader.collector,
        version=leader.version,
        schema=leader.schema,
        ops=together(OPS_COLUMNS, lambda capture: capture.ops),
        api=together(API_COLUMNS, lambda capture: capture.api),
        ranges=together(RANGE_COLUMNS, lambda capture: capture.ranges),
        sync=together(SYNC_COLUMNS, lambda capture: capture.sync),
        osrt=together(API_COLUMNS, lambda capture: capture.osrt),
        nodes=together(NODE_COLUMNS, lambda capture: capture.nodes),
        strings=strings.texts,
        devices=tuple(devices),
        problems=problems,
        info=leader.info | {"ids": " ".join(sorted(ids_so_far))},
        processes=tuple(processes),
        lacks=tuple(lacks),
    )


def _moved(table: Table, start: int, ids: np.ndarray) -> dict[str, np.ndarray]:
    columns = {name: ids[column] if name in _TEXTS else column for name, column in table.as_dict().items()}
    return columns | {"process": table.process + start}


def _shifted(process: int, start: int) -> int:
    return process + start if process >= 0 else process
