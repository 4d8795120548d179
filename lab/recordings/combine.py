"""Several recordings of one job as one: every process keeps its own index, strings are shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from lab.recordings.capture import (
    API_COLUMNS,
    OPS_COLUMNS,
    RANGE_COLUMNS,
    SYNC_COLUMNS,
    Capture,
    Device,
    Process,
    Strings,
)
from lab.recordings.counters import COUNTER_COLUMNS
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
    strings, seen, problems = Strings(), set[str](), list[str]()
    kept: list[tuple[Capture, int]] = []
    first = 0
    for one in captures:
        ids = set(one.info.get("ids", "").split())
        problems += [f"{one.source.name}: {text}" for text in one.problems]
        if ids & seen:
            problems.append(f"{one.source.name}: left out, because another file holds the same process")
            continue
        seen |= ids
        kept.append((one, first))
        first += len(one.processes)
    translate = [np.array([*map(strings.id, one.strings), -1], dtype=np.int32) for one, _ in kept]

    def together(schema: Schema, of: Callable[[Capture], Table]) -> Table:
        parts = zip(kept, translate, strict=True)
        return concat([_moved(of(one), start, ids) for (one, start), ids in parts], schema)

    devices: list[Device] = []
    lacks: list[Lack] = []
    processes: list[Process] = []
    for one, start in kept:
        devices += [replace(device, process=_shifted(device.process, start)) for device in one.devices]
        lacks += [msgspec.structs.replace(lack, process=_shifted(lack.process, start)) for lack in one.lacks]
        processes += one.processes
    return replace(
        kept[0][0],
        source=source,
        ops=together(OPS_COLUMNS, lambda one: one.ops),
        api=together(API_COLUMNS, lambda one: one.api),
        ranges=together(RANGE_COLUMNS, lambda one: one.ranges),
        sync=together(SYNC_COLUMNS, lambda one: one.sync),
        counters=together(COUNTER_COLUMNS, lambda one: one.counters),
        strings=strings.texts,
        devices=tuple(devices),
        problems=problems,
        info=kept[0][0].info | {"ids": " ".join(sorted(seen))},
        processes=tuple(processes),
        lacks=tuple(lacks),
    )


def _moved(table: Table, start: int, ids: np.ndarray) -> dict[str, np.ndarray]:
    columns = {name: ids[column] if name in _TEXTS else column for name, column in table.as_dict().items()}
    return columns | {"process": table.process + start}


def _shifted(process: int, start: int) -> int:
    return process + start if process >= 0 else process
