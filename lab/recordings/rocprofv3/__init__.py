"""Reader of rocprofv3's JSON (`--output-format json`), its rows in pieces.

One object `rocprofiler-sdk-tool`, a list with one element per process. Rows are not in the order of time; a
kind and an operation are indices of the names in `strings.buffer_records`, which differ between versions.
Only what is needed is decoded: command, configuration and host name are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from lab.errors import BadDataError
from lab.recordings.capture import Capture, Process, Strings
from lab.recordings.pieces import read_whole
from lab.recordings.rocm import (
    MARKERS,
    Parts,
    device_of_agent,
    kernel_name,
    narrow,
)
from lab.recordings.sqlite import lookup
from lab.recordings.tables import Columns
from lab.stats.columns import per_distinct

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


class Metadata(msgspec.Struct, frozen=True):
    """A process: its id, and when it began and ended."""

    pid: Int64 = -1
    init_time: Int64 = -1
    fini_time: Int64 = -1


class Names(msgspec.Struct, frozen=True):
    buffer_records: list[Kind] = []
    marker_api: list[Marker] = []


class Element(msgspec.Struct, frozen=True):
    """One process' element of the list; command, configuration and host name are passed over."""

    metadata: Metadata = Metadata()
    strings: Names = Names()
    agents: list[Any] = []
    kernel_symbols: list[Symbol] = []
    buffer_records: dict[str, msgspec.Raw] = {}


class _Document(msgspec.Struct, frozen=True):
    elements: list[Element] | Element = msgspec.field(name="rocprofiler-sdk-tool")


_TIMED = {
    "start": "start_timestamp",
    "end": "end_timestamp",
    # rocpd's stack_id. The external id is 0 unless the program sets one, so it joins nothing.
    "corr": "correlation_id.internal",
}
_OF_STREAM = {
    "stream": "stream_id.handle",
    "graph": "graph_exec_id.handle",
    "graph_node": "graph_node_id.handle",
}
_INFO = {
    "device": "agent_id.handle",
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
    """The elements of a file, its rows still as text."""
    text = read_whole(path, MOST_BYTES, "record with --output-format rocpd")
    try:
        document = msgspec.json.decode(text.removeprefix(b"\xef\xbb\xbf"), type=_Document)
    except (ValueError, RecursionError) as error:
        problem = f"truncated, damaged, or not what rocprofv3 writes: {error}"
        raise BadDataError(problem, location=path, fix=_FIX) from error
    return document.elements if isinstance(document.elements, list) else [document.elements]


def read_columns(element: Element, record: str, path: Path) -> Columns:
    """Columns (n,) of int64 of an element's rows; record is `call`, `dispatch` or `copy`."""
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


def load(path: Path | str) -> Capture:
    """Read one file, plain or gzip."""
    parts = Parts(Path(path))
    for process, element in enumerate(read_document(parts.path)):
        _add(element, process, parts)
    return parts.capture("rocprofv3")


def _add(element: Element, process: int, parts: Parts) -> None:
    strings, metadata = parts.strings, element.metadata
    # Type 1 is a CPU, 2 a GPU; both are numbered as agents.
    agents = [agent for agent in element.agents if isinstance(agent, dict) and agent.get("type") == 2]
    gpus = {_handle(agent): agent for agent in agents if _ordinal(agent) >= 0}
    handles = np.array([*gpus], dtype=np.int64)
    ordinals = np.array([_ordinal(agent) for agent in gpus.values()], dtype=np.int64)

    def rows_of(record: str) -> Columns:
        rows = read_columns(element, record, parts.path)
        size = len(rows["start"])
        rows |= parts.times("rows", rows)
        rows |= {"process": np.full(size, process), "pid": np.full(size, metadata.pid)}
        # -1 for a CPU.
        agents = {name: rows[name] for name in ("device", "target", "origin") if name in rows}
        return rows | {name: narrow(lookup(handles, ordinals, column)) for name, column in agents.items()}

    symbols = {symbol.kernel_id: symbol for symbol in element.kernel_symbols}

    def of_symbol(kernel: int) -> tuple[int, int, int, int]:
        symbol = symbols.get(kernel) or Symbol(kernel)
        name = strings.id(kernel_name(kernel, symbol.formatted_kernel_name, symbol.kernel_name))
        return name, symbol.group_segment_size, symbol.arch_vgpr_count, symbol.accum_vgpr_count

    kernels = rows_of("dispatch")
    of_symbols = per_distinct(kernels["kernel"], of_symbol, width=4).T
    parts.add_kernels(kernels | dict(zip(("name_id", "static", "vgprs", "accums"), of_symbols, strict=True)))
    calls = rows_of("call")
    calls["name_id"], is_mark = _names(element, calls, strings)
    messages = {marker.key: marker.value for marker in element.strings.marker_api}
    api = parts.add_calls(calls, is_mark, lambda row: messages.get(int(calls["corr"][row])))
    parts.judge(process, kernels["dispatch"], calls=len(api) > 0)
    copies = rows_of("copy")
    parts.add_copies(copies | {"name_id": _names(element, copies, strings)[0]})
    ids = (metadata.pid, metadata.init_time, metadata.fini_time)
    pid, start_ns, end_ns = (value if 0 < value < 1 << 62 else None for value in ids)
    parts.processes.append(Process(pid=pid, start_ns=start_ns, end_ns=end_ns))
    parts.devices += [
        device_of_agent(agent, _ordinal(agent), str(agent.get("product_name", "")), process)
        for agent in gpus.values()
    ]


def _handle(agent: dict[str, Any]) -> int:
    number = agent.get("id")
    handle = number.get("handle") if isinstance(number, dict) else None
    return handle if isinstance(handle, int) and 0 <= handle < 1 << 62 else -1


def _ordinal(agent: dict[str, Any]) -> int:
    number = agent.get("logical_node_type_id")
    return number if isinstance(number, int) and 0 <= number < 1 << 31 else -1


def _names(element: Element, rows: Columns, strings: Strings) -> tuple[np.ndarray, np.ndarray]:
    """String ids (n,) of operations, and whether they are markers of a program (n,)."""

    def of_pair(pair: list[int]) -> tuple[int, bool]:
        number, operation = pair
        kind = _at(element.strings.buffer_records, number) or Kind()
        name = _at(kind.operations, operation) or f"{kind.kind or number} {operation}"
        return strings.id(name), kind.kind in MARKERS

    pairs = np.stack([rows["kind"], rows["operation"]], axis=1)
    names, marks = per_distinct(pairs, of_pair, width=2).T
    return names, marks > 0


def _at(values: list[Any], index: int) -> Any:
    return values[index] if 0 <= index < len(values) else None
