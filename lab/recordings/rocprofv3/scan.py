"""rocprofv3's JSON as it lies in the file, and its rows as columns."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from lab.errors import BadDataError
from lab.recordings.pieces import read_whole

# A number beyond it is an error of the decoder rather than of a column.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


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
    """A process: its id, and when it began and ended."""

    pid: Int64 = -1
    init_time: Int64 = -1
    fini_time: Int64 = -1


class Strings(msgspec.Struct, frozen=True):
    buffer_records: list[Kind] = []
    marker_api: list[Marker] = []


class Element(msgspec.Struct, frozen=True):
    """One process' element of the list; command, configuration and host name are passed over."""

    metadata: Process = Process()
    strings: Strings = Strings()
    agents: list[Any] = []
    kernel_symbols: list[Symbol] = []
    buffer_records: dict[str, msgspec.Raw] = {}


class _Document(msgspec.Struct, frozen=True):
    elements: list[Element] | Element = msgspec.field(name="rocprofiler-sdk-tool")


Columns = dict[str, np.ndarray]
_TIMED = {
    "start_ns": "start_timestamp",
    "end_ns": "end_timestamp",
    # rocpd's stack_id. The external id is 0 unless the program sets one, so it joins nothing.
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
# Records of the file, and where in one of their rows a column stands.
_PATHS: dict[str, dict[str, str]] = {
    "call": _TIMED | {"kind": "kind", "operation": "operation", "tid": "thread_id"},
    "dispatch": _TIMED | _OF_STREAM | {name: f"dispatch_info.{path}" for name, path in _INFO.items()},
    "copy": _TIMED
    | _OF_STREAM
    | {"kind": "kind", "operation": "operation", "bytes": "bytes"}
    | {"target": "dst_agent_id.handle", "origin": "src_agent_id.handle"},
}
_REQUIRED = ("start_timestamp", "end_timestamp", "dispatch_info", "kernel_id")


def _row_type(paths: Iterable[str]) -> type[msgspec.Struct]:
    """A row with these fields as numbers, -1 where one is absent that old versions do not write."""
    inner: dict[str, list[str]] = {}
    for path in paths:
        head, _, tail = path.partition(".")
        inner.setdefault(head, []).append(tail)
    fields: list[Any] = []
    for name, tails in inner.items():
        kind = _row_type(tails) if tails != [""] else Int64
        if name in _REQUIRED:
            fields.append((name, kind))
        else:
            fields.append((name, kind, -1 if kind is Int64 else kind()))
    return msgspec.defstruct("Row", fields, gc=False, frozen=True, kw_only=True)


_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    record: msgspec.json.Decoder(list[_row_type(paths.values())])  # type: ignore[misc]
    for record, paths in _PATHS.items()
}
_DOMAINS = {
    "call": ("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api"),
    "dispatch": ("kernel_dispatch",),
    "copy": ("memory_copy",),
}
MOST_BYTES = 2 << 30
_FIX = "record or copy the file again"


def read_document(path: Path) -> list[Element]:
    """The elements of a file, plain or gzip, its rows still as text.

    Raises MissingError without the file; BadDataError if it is truncated, damaged, larger than MOST_BYTES or
    not what the tool writes.
    """
    text = read_whole(path, MOST_BYTES, "record with --output-format rocpd")
    try:
        document = msgspec.json.decode(text.removeprefix(b"\xef\xbb\xbf"), type=_Document)
    except (ValueError, RecursionError) as error:
        problem = f"truncated, damaged, or not what rocprofv3 writes: {error}"
        raise BadDataError(problem, location=path, fix=_FIX) from error
    return document.elements if isinstance(document.elements, list) else [document.elements]


def read_columns(element: Element, record: str, path: Path) -> Columns:
    """Columns (n,) of int64 of an element's rows; record is `call`, `dispatch` or `copy`.

    Raises BadDataError for rows that are not what the tool writes.
    """
    rows: list[Any] = []
    for domain, text in element.buffer_records.items():
        if domain in _DOMAINS[record]:
            try:
                rows += _DECODERS[record].decode(text)
            except (ValueError, RecursionError) as error:
                problem = f"rows of {domain} that rocprofv3 does not write: {error}"
                raise BadDataError(problem, location=path, fix=_FIX) from error
    return {
        name: np.fromiter(map(attrgetter(path_in_row), rows), dtype=np.int64, count=len(rows))
        for name, path_in_row in _PATHS[record].items()
    }
