"""From one file to a capture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.recordings.capture import (
    API_COLUMNS,
    OPS_COLUMNS,
    RANGE_COLUMNS,
    Capture,
    Process,
    Strings,
    filled,
)
from lab.recordings.rocm import (
    MARKERS,
    Parts,
    copy_columns,
    device_of_agent,
    graph_columns,
    kernel_columns,
    marker_columns,
    narrow,
    sound_times,
)
from lab.recordings.rocprofv3 import scan as records
from lab.recordings.rocprofv3.scan import Columns, Scan
from lab.recordings.sqlite import lookup
from lab.recordings.tables import NO_SYMBOL, Table
from lab.stats.columns import per_distinct

KEY = "rocprofiler-sdk-tool"
_DECODERS: dict[str, tuple[str, msgspec.json.Decoder[Any]]] = {
    "kernel_dispatch": ("dispatch", records.DISPATCHES),
    "memory_copy": ("copy", records.COPIES),
    **dict.fromkeys(
        ("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api"),
        ("call", records.CALLS),
    ),
}


@dataclass
class _Element:
    """One process' element of the list, still with the file's own ids."""

    path: Path
    metadata: records.Process = field(default_factory=records.Process)
    kinds: list[records.Kind] = field(default_factory=list)
    messages: dict[int, str] = field(default_factory=dict)
    gpus: dict[int, dict[str, Any]] = field(default_factory=dict)  # agents by handle
    symbols: dict[int, records.Symbol] = field(default_factory=dict)
    pieces: dict[str, list[Columns]] = field(default_factory=lambda: {"dispatch": [], "copy": [], "call": []})

    def device_of(self, handles: np.ndarray) -> np.ndarray:
        """The GPU's ordinal (n,) by its agent's handle; -1 for a CPU."""
        ordinals = np.array([_ordinal(agent) for agent in self.gpus.values()], dtype=np.int64)
        return narrow(lookup(np.array([*self.gpus], dtype=np.int64), ordinals, handles))


def load(path: Path | str) -> Capture:
    """Read one file, plain or gzip.

    Raises MissingError without the file; BadDataError, with the byte, if it is truncated, damaged or has rows
    that are not what the tool writes.
    """
    path = Path(path)
    strings, parts = Strings(), Parts()
    for process, element in enumerate(_elements(Scan(path))):
        kernels, dispatches = _kernels(element, process, strings, parts.problems)
        calls, marks = _calls(element, process, strings, parts.problems)
        parts.add_dispatches(process, dispatches, calls=len(calls) > 0)
        parts.ops += [kernels, _copies(element, process, strings, parts.problems)]
        parts.api.append(calls)
        parts.ranges.append(marks)
        parts.processes.append(_process(element.metadata))
        parts.devices += [
            device_of_agent(agent, _ordinal(agent), str(agent.get("product_name", "")), process)
            for agent in element.gpus.values()
        ]
    return parts.capture(path, "rocprofv3", strings)


def _elements(scan: Scan) -> Iterator[_Element]:
    is_read = False
    for key in scan.members():
        if key != KEY or is_read:
            scan.skip()
            continue
        is_read = True
        if scan.is_object():
            yield _element(scan)
            continue
        for _ in scan.items():
            yield _element(scan)


def _element(scan: Scan) -> _Element:
    element = _Element(scan.path)
    for key in scan.members():
        if key == "metadata":
            element.metadata = scan.value(records.Process)
        elif key == "strings" and scan.is_object():
            _read_strings(scan, element)
        elif key == "agents" and scan.is_list():
            agents = [agent for agent in scan.value() if isinstance(agent, dict) and agent.get("type") == 2]
            element.gpus = {_handle(agent): agent for agent in agents if _ordinal(agent) >= 0}
        elif key == "kernel_symbols" and scan.is_list():
            for symbols in scan.rows(records.SYMBOLS):
                element.symbols |= {symbol.kernel_id: symbol for symbol in symbols}
        elif key == "buffer_records" and scan.is_object():
            _read_records(scan, element)
        else:
            scan.skip()
    return element


def _read_strings(scan: Scan, into: _Element) -> None:
    for key in scan.members():
        if key == "buffer_records":
            into.kinds = scan.value(list[records.Kind])
        elif key == "marker_api" and scan.is_list():
            for markers in scan.rows(records.MARKERS):
                into.messages |= {marker.key: marker.value for marker in markers}
        else:
            scan.skip()


def _read_records(scan: Scan, into: _Element) -> None:
    for kind in scan.members():
        if kind not in _DECODERS or not scan.is_list():
            scan.skip()
            continue
        record, decoder = _DECODERS[kind]
        for rows in scan.rows(decoder):
            into.pieces[record].append(records.columns_of(record, rows))


def _process(metadata: records.Process) -> Process:
    pid, start_ns, end_ns = (
        value if 0 < value < 1 << 62 else None for value in msgspec.structs.astuple(metadata)
    )
    return Process(pid=pid, start_ns=start_ns, end_ns=end_ns)


def _handle(agent: dict[str, Any]) -> int:
    number = agent.get("id")
    handle = number.get("handle") if isinstance(number, dict) else None
    return handle if isinstance(handle, int) and 0 <= handle < 1 << 62 else -1


def _ordinal(agent: dict[str, Any]) -> int:
    number = agent.get("logical_node_type_id")
    return number if isinstance(number, int) and 0 <= number < 1 << 31 else -1


def _shared(element: _Element, process: int, rows: Columns, problems: list[str]) -> Columns:
    size = len(rows["start_ns"])
    return sound_times(element.path, "rows", rows["start_ns"], rows["end_ns"], problems) | {
        "process": np.full(size, process),
        "pid": np.full(size, element.metadata.pid),
        "corr": rows["corr"],
    }


def _kernels(
    element: _Element, process: int, strings: Strings, problems: list[str]
) -> tuple[Table, np.ndarray]:
    rows = records.together("dispatch", element.pieces["dispatch"])

    def of_symbol(kernel: int) -> tuple[int, int, int, int]:
        symbol = element.symbols.get(kernel)
        sizes = symbol or records.Symbol(kernel)
        name = strings.id(_kernel_name(kernel, symbol))
        return name, sizes.group_segment_size, sizes.arch_vgpr_count, sizes.accum_vgpr_count

    name_id, *sizes = per_distinct(rows["kernel"], of_symbol, width=4).T
    rows |= dict(zip(("static", "vgprs", "accums"), sizes, strict=True))
    columns = {
        **_shared(element, process, rows, problems),
        **kernel_columns(rows),
        "name_id": name_id,
        "device": element.device_of(rows["agent"]),
        "stream": rows["stream"],
    }
    return filled(OPS_COLUMNS, len(name_id), columns), rows["dispatch"]


def _kernel_name(kernel: int, symbol: records.Symbol | None) -> str:
    name = (symbol.formatted_kernel_name or symbol.kernel_name.removesuffix(".kd")) if symbol else ""
    return name or f"kernel {kernel} {NO_SYMBOL}"


def _copies(element: _Element, process: int, strings: Strings, problems: list[str]) -> Table:
    rows = records.together("copy", element.pieces["copy"])
    names, _ = _names(element, rows, strings)
    target, origin = (element.device_of(rows[name]) for name in ("target", "origin"))
    columns = {
        **_shared(element, process, rows, problems),
        **copy_columns(strings.texts, names),
        **graph_columns(rows),
        "name_id": names,
        "device": np.where(target >= 0, target, origin),
        "stream": rows["stream"],
        "bytes": rows["bytes"],
    }
    return filled(OPS_COLUMNS, len(names), columns)


def _calls(element: _Element, process: int, strings: Strings, problems: list[str]) -> tuple[Table, Table]:
    """The API calls, and the ranges that the program marked."""
    rows = records.together("call", element.pieces["call"])
    names, is_mark = _names(element, rows, strings)
    shared = _shared(element, process, rows, problems) | {"tid": rows["tid"], "name_id": names}
    calls = [strings.texts[name] for name in names[is_mark].tolist()]
    messages = map(element.messages.get, rows["corr"][is_mark].tolist())
    ranges = filled(RANGE_COLUMNS, len(names), shared).where(is_mark)
    marked = marker_columns(strings, zip(calls, messages, strict=True))
    return filled(API_COLUMNS, len(names), shared).where(~is_mark), Table(ranges.as_dict() | marked)


def _names(element: _Element, rows: Columns, strings: Strings) -> tuple[np.ndarray, np.ndarray]:
    """String ids (n,) of operations, and whether they are markers of a program (n,)."""

    def of_pair(pair: list[int]) -> tuple[int, bool]:
        number, operation = pair
        kind = _at(element.kinds, number) or records.Kind()
        name = _at(kind.operations, operation) or f"{kind.kind or number} {operation}"
        return strings.id(name), kind.kind in MARKERS

    pairs = np.stack([rows["kind"], rows["operation"]], axis=1)
    names, marks = per_distinct(pairs, of_pair, width=2).T
    return names, marks > 0


def _at(values: list[Any], index: int) -> Any:
    return values[index] if 0 <= index < len(values) else None
