"""The rows of rocprofv3's JSON, as msgspec decodes them, and as columns."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np

# A number beyond it is an error of the decoder rather than of a column.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Corr(msgspec.Struct, gc=False, frozen=True):
    internal: Int64 = -1


class Handle(msgspec.Struct, gc=False, frozen=True):
    handle: Int64 = -1


class Sizes(msgspec.Struct, gc=False, frozen=True):
    x: Int64 = -1
    y: Int64 = -1
    z: Int64 = -1


class DispatchInfo(msgspec.Struct, gc=False, frozen=True):
    kernel_id: Int64
    agent_id: Handle = Handle()
    dispatch_id: Int64 = -1
    group_segment_size: Int64 = -1
    workgroup_size: Sizes = Sizes()
    grid_size: Sizes = Sizes()


class Call(msgspec.Struct, gc=False, frozen=True):
    """An API call or a marker."""

    start_timestamp: Int64
    end_timestamp: Int64
    kind: Int64 = -1
    operation: Int64 = -1
    thread_id: Int64 = -1
    correlation_id: Corr = Corr()


class Dispatch(msgspec.Struct, gc=False, frozen=True):
    start_timestamp: Int64
    end_timestamp: Int64
    dispatch_info: DispatchInfo
    correlation_id: Corr = Corr()
    stream_id: Handle = Handle()
    graph_exec_id: Handle = Handle()
    graph_node_id: Handle = Handle()


class Copy(msgspec.Struct, gc=False, frozen=True):
    start_timestamp: Int64
    end_timestamp: Int64
    kind: Int64 = -1
    operation: Int64 = -1
    correlation_id: Corr = Corr()
    stream_id: Handle = Handle()
    dst_agent_id: Handle = Handle()
    src_agent_id: Handle = Handle()
    bytes_: Int64 = msgspec.field(name="bytes", default=-1)
    graph_exec_id: Handle = Handle()
    graph_node_id: Handle = Handle()


class CounterValue(msgspec.Struct, gc=False, frozen=True):
    counter_id: Handle
    value: float


class DispatchData(msgspec.Struct, gc=False, frozen=True):
    dispatch_info: DispatchInfo


class CounterRecord(msgspec.Struct, gc=False, frozen=True):
    """What one dispatch measured; several values of one counter are instances of its hardware block."""

    dispatch_data: DispatchData
    records: list[CounterValue] = []


class Counter(msgspec.Struct, gc=False, frozen=True):
    id: Handle = Handle()
    name: str = ""


class Symbol(msgspec.Struct, gc=False, frozen=True):
    kernel_id: Int64
    formatted_kernel_name: str = ""
    kernel_name: str = ""
    group_segment_size: Int64 = -1
    arch_vgpr_count: Int64 = -1
    accum_vgpr_count: Int64 = -1


class Kind(msgspec.Struct, frozen=True):
    kind: str = ""
    operations: list[str] = []


class Marker(msgspec.Struct, gc=False, frozen=True):
    key: Int64
    value: str


class Process(msgspec.Struct, frozen=True):
    """Of the metadata only this."""

    pid: Int64 = -1
    init_time: Int64 = -1
    fini_time: Int64 = -1


Columns = dict[str, np.ndarray]
_TIMED = {
    "start_ns": "start_timestamp",
    "end_ns": "end_timestamp",
    "corr": "correlation_id.internal",
}
_OF_STREAM = {
    "stream": "stream_id.handle",
    "graph": "graph_exec_id.handle",
    "graph_node": "graph_node_id.handle",
}
_INFO = {
    "agent": "agent_id.handle",
    "kernel": "kernel_id",
    "dispatch": "dispatch_id",
    "shared": "group_segment_size",
    **{f"block_{axis}": f"workgroup_size.{axis}" for axis in "xyz"},
    **{f"items_{axis}": f"grid_size.{axis}" for axis in "xyz"},
}
_PATHS: dict[str, dict[str, str]] = {
    "call": _TIMED | {"kind": "kind", "operation": "operation", "tid": "thread_id"},
    "dispatch": _TIMED | _OF_STREAM | {name: f"dispatch_info.{path}" for name, path in _INFO.items()},
    "copy": _TIMED
    | _OF_STREAM
    | {"kind": "kind", "operation": "operation", "bytes": "bytes_"}
    | {"target": "dst_agent_id.handle", "origin": "src_agent_id.handle"},
}
CALLS = msgspec.json.Decoder(list[Call])
DISPATCHES = msgspec.json.Decoder(list[Dispatch])
COPIES = msgspec.json.Decoder(list[Copy])
MARKERS = msgspec.json.Decoder(list[Marker])
COUNTER_RECORDS = msgspec.json.Decoder(list[CounterRecord])
COUNTERS = msgspec.json.Decoder(list[Counter])
SYMBOLS = msgspec.json.Decoder(list[Symbol])


def columns_of(record: str, rows: Sequence[Any]) -> Columns:
    """Columns (n,) of int64 of one piece's rows; record is `call`, `dispatch` or `copy`."""
    return {
        name: np.fromiter(map(attrgetter(path), rows), dtype=np.int64, count=len(rows))
        for name, path in _PATHS[record].items()
    }


def together(record: str, pieces: Sequence[Columns]) -> Columns:
    """The columns of all pieces."""
    empty = np.empty(0, dtype=np.int64)
    return {name: np.concatenate([empty, *(piece[name] for piece in pieces)]) for name in _PATHS[record]}
