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
    KERNEL,
    MEMCPY,
    OPS_COLUMNS,
    PUSH_POP,
    RANGE_COLUMNS,
    START_END,
    SYNC_COLUMNS,
    Capture,
    Device,
    Process,
    Strings,
    filled,
)
from lab.recordings.counters import COUNTER_COLUMNS, Total, sum_by_counter, totals_table
from lab.recordings.lacks import Lack
from lab.recordings.rocm import (
    MARKERS,
    NO_TEXT,
    START_STOP,
    blocks,
    copy_columns,
    device_of_agent,
    dispatch_lacks,
    narrow,
    repeated_dispatches,
    sound_times,
)
from lab.recordings.rocprofv3 import records
from lab.recordings.rocprofv3.records import Columns
from lab.recordings.rocprofv3.scan import Scan
from lab.recordings.sqlite import lookup
from lab.recordings.tables import NO_SYMBOL, Table, concat

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
    """What one process' element of the list holds, still with the file's own ids."""

    path: Path
    metadata: records.Process = field(default_factory=records.Process)
    kinds: list[records.Kind] = field(default_factory=list)
    messages: dict[int, str] = field(default_factory=dict)
    agents: list[dict[str, Any]] = field(default_factory=list)
    symbols: dict[int, records.Symbol] = field(default_factory=dict)
    pieces: dict[str, list[Columns]] = field(default_factory=lambda: {"dispatch": [], "copy": [], "call": []})
    counters: dict[int, str] = field(default_factory=dict)  # names by handle
    totals: dict[tuple[int, int], Total] = field(default_factory=dict)  # by kernel and counter

    def table(self, what: str) -> Columns:
        return records.together(what, self.pieces[what])


def load(path: Path | str) -> Capture:
    """Read one file, plain or gzip.

    Raises MissingError without the file; BadDataError, with the byte, if it is truncated, damaged or has rows
    that are not what the tool writes.
    """
    path = Path(path)
    strings, problems = Strings(), list[str]()
    ops, api, ranges, counters = list[Table](), list[Table](), list[Table](), list[Table]()
    processes, devices, lacks = list[Process](), list[Device](), list[Lack]()
    for process, element in enumerate(_elements(Scan(path))):
        kernels, dispatches = _kernels(element, process, strings, problems)
        calls, marks = _calls(element, process, strings, problems)
        lacks += dispatch_lacks(process, dispatches, calls=len(calls) > 0)
        problems += repeated_dispatches(dispatches)
        ops += [kernels, _copies(element, process, strings, problems)]
        api.append(calls)
        ranges.append(marks)
        processes.append(_process(element.metadata))
        devices += _devices(element.agents, process)
        counters.append(_counters(element, process, strings))
    return Capture(
        source=path,
        collector="rocprofv3",
        version=None,
        schema=None,
        ops=concat([one.as_dict() for one in ops], OPS_COLUMNS),
        api=concat([one.as_dict() for one in api], API_COLUMNS),
        ranges=concat([one.as_dict() for one in ranges], RANGE_COLUMNS),
        sync=concat([], SYNC_COLUMNS),
        strings=strings.texts,
        devices=tuple(devices),
        problems=problems,
        info={"vendor": "amd"},
        processes=tuple(processes) or (Process(),),
        lacks=tuple(lacks),
        counters=concat([one.as_dict() for one in counters], COUNTER_COLUMNS),
    )


def _elements(scan: Scan) -> Iterator[_Element]:
    found = False
    for key in scan.members():
        if key != KEY or found:
            scan.skip()
            continue
        found = True
        if scan.is_object():
            yield _element(scan)
            continue
        for _ in scan.items():
            yield _element(scan)


def _element(scan: Scan) -> _Element:
    found = _Element(scan.path)
    for key in scan.members():
        if key == "metadata":
            found.metadata = scan.value(records.Process)
        elif key == "strings" and scan.is_object():
            _read_strings(scan, found)
        elif key == "agents" and scan.is_list():
            found.agents = [one for one in _list(scan.value()) if isinstance(one, dict)]
        elif key == "counters" and scan.is_list():
            for known in scan.rows(records.COUNTERS):
                found.counters |= {one.id.handle: one.name for one in known}
        elif key == "kernel_symbols" and scan.is_list():
            for symbols in scan.rows(records.SYMBOLS):
                found.symbols |= {one.kernel_id: one for one in symbols}
        elif key == "buffer_records" and scan.is_object():
            _read_records(scan, found)
        elif key == "callback_records" and scan.is_object():
            _read_counters(scan, found)
        else:
            scan.skip()
    return found


def _read_strings(scan: Scan, into: _Element) -> None:
    for what in scan.members():
        if what == "buffer_records":
            into.kinds = scan.value(list[records.Kind])
        elif what == "marker_api" and scan.is_list():
            for markers in scan.rows(records.MARKERS):
                into.messages |= {one.key: one.value for one in markers}
        else:
            scan.skip()


def _read_records(scan: Scan, into: _Element) -> None:
    for kind in scan.members():
        if kind not in _DECODERS or not scan.is_list():
            scan.skip()
            continue
        what, decoder = _DECODERS[kind]
        for rows in scan.rows(decoder):
            into.pieces[what].append(records.columns_of(what, rows))


def _read_counters(scan: Scan, into: _Element) -> None:
    for kind in scan.members():
        if kind != "counter_collection" or not scan.is_list():
            scan.skip()
            continue
        for rows in scan.rows(records.COUNTER_RECORDS):
            for row in rows:
                kernel = row.dispatch_data.dispatch_info.kernel_id
                values = ((one.counter_id.handle, one.value) for one in row.records)
                for counter, value in sum_by_counter(values).items():
                    into.totals.setdefault((kernel, counter), Total()).add(value)


def _counters(element: _Element, process: int, strings: Strings) -> Table:
    """The counters by the names of kernels; symbols of one name are one kernel."""
    totals: dict[tuple[int, int, int], Total] = {}
    for (kernel, counter), total in element.totals.items():
        name = strings.id(_kernel_name(kernel, element.symbols.get(kernel)))
        key = name, strings.id(element.counters.get(counter) or f"counter {counter}"), -1
        totals[key] = totals[key].with_(total) if key in totals else total
    return totals_table(process, totals)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _process(metadata: records.Process) -> Process:
    known = [value if 0 < value < 1 << 62 else None for value in msgspec.structs.astuple(metadata)]
    return Process(pid=known[0], start_ns=known[1], end_ns=known[2])


def _handle(agent: dict[str, Any]) -> int:
    found = agent.get("id")
    handle = found.get("handle") if isinstance(found, dict) else None
    return handle if isinstance(handle, int) and 0 <= handle < 1 << 62 else -1


def _ordinal(agent: dict[str, Any]) -> int:
    found = agent.get("logical_node_type_id")
    return found if isinstance(found, int) and 0 <= found < 1 << 31 else -1


def _gpus(agents: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {_handle(one): one for one in agents if one.get("type") == 2 and _ordinal(one) >= 0}


def _devices(agents: list[dict[str, Any]], process: int) -> list[Device]:
    return [
        device_of_agent(one, _ordinal(one), str(one.get("product_name", "")), process)
        for one in _gpus(agents).values()
    ]


def _device_of(agents: list[dict[str, Any]], handles: np.ndarray) -> np.ndarray:
    """The GPU's ordinal (n,) by its agent's handle; -1 for a CPU."""
    gpus = _gpus(agents)
    ordinals = [_ordinal(one) for one in gpus.values()]
    return narrow(lookup(np.array(list(gpus), dtype=np.int64), np.array(ordinals, dtype=np.int64), handles))


def _shared(element: _Element, process: int, found: Columns, problems: list[str]) -> Columns:
    times = sound_times(element.path, "rows", found["start_ns"], found["end_ns"], problems)
    size = len(found["start_ns"])
    return times | {
        "process": np.full(size, process),
        "pid": np.full(size, element.metadata.pid),
        "corr": found["corr"],
    }


def _kernels(
    element: _Element, process: int, strings: Strings, problems: list[str]
) -> tuple[Table, np.ndarray]:
    found = element.table("dispatch")
    used, which = np.unique(found["kernel"], return_inverse=True)
    symbols = [element.symbols.get(one) for one in used.tolist()]
    names = [
        strings.id(_kernel_name(one, symbol)) for one, symbol in zip(used.tolist(), symbols, strict=True)
    ]
    static, vgprs, accums = (
        np.array([getattr(symbol, name, -1) for symbol in symbols], dtype=np.int64)[which]
        for name in ("group_segment_size", "arch_vgpr_count", "accum_vgpr_count")
    )
    columns = _shared(element, process, found, problems) | {
        "kind": np.full(len(which), KERNEL),
        "name_id": np.array(names, dtype=np.int32)[which],
        "device": _device_of(element.agents, found["agent"]),
        "stream": found["stream"],
        "graph": np.where(found["graph"] > 0, found["graph"], -1),
        "graph_node": np.where(found["graph_node"] > 0, found["graph_node"], -1),
        "regs": narrow(np.where(vgprs >= 0, vgprs + np.maximum(accums, 0), -1)),
        "static_smem_bytes": static,
        "dynamic_smem_bytes": np.where(
            found["shared"] >= 0, np.maximum(found["shared"] - np.maximum(static, 0), 0), -1
        ),
        **{f"block_{axis}": narrow(found[f"block_{axis}"]) for axis in "xyz"},
        **{f"grid_{axis}": blocks(found[f"items_{axis}"], found[f"block_{axis}"]) for axis in "xyz"},
    }
    return filled(OPS_COLUMNS, len(which), columns), found["dispatch"]


def _kernel_name(kernel: int, symbol: records.Symbol | None) -> str:
    found = (symbol.formatted_kernel_name or symbol.kernel_name.removesuffix(".kd")) if symbol else ""
    return found or f"kernel {kernel} {NO_SYMBOL}"


def _copies(element: _Element, process: int, strings: Strings, problems: list[str]) -> Table:
    found = element.table("copy")
    names, _ = _names(element, found, strings)
    target, origin = (_device_of(element.agents, found[name]) for name in ("target", "origin"))
    columns = _shared(element, process, found, problems) | {
        "kind": np.full(len(names), MEMCPY),
        "name_id": names,
        "device": np.where(target >= 0, target, origin),
        "stream": found["stream"],
        "bytes": found["bytes"],
        "graph": np.where(found["graph"] > 0, found["graph"], -1),
        "graph_node": np.where(found["graph_node"] > 0, found["graph_node"], -1),
        **copy_columns(strings.texts, names),
    }
    return filled(OPS_COLUMNS, len(names), columns)


def _calls(element: _Element, process: int, strings: Strings, problems: list[str]) -> tuple[Table, Table]:
    """The API calls, and the ranges that the program marked."""
    found = element.table("call")
    names, is_mark = _names(element, found, strings)
    shared = _shared(element, process, found, problems) | {"tid": found["tid"]}
    api = filled(API_COLUMNS, len(names), shared | {"name_id": names}).where(~is_mark)
    at = np.flatnonzero(is_mark)
    calls = [strings.texts[name] for name in names[at].tolist()]
    texts = np.array(
        [
            strings.id(call if call in NO_TEXT else element.messages.get(corr) or call)
            for call, corr in zip(calls, found["corr"][at].tolist(), strict=True)
        ],
        dtype=np.int32,
    )
    bare, seq = strings.stripped(texts)
    kinds = np.array([START_END if call in START_STOP else PUSH_POP for call in calls], dtype=np.int8)
    ranges = filled(RANGE_COLUMNS, len(names), shared).where(is_mark)
    return api, Table(ranges.as_dict() | {"text_id": texts, "name_id": bare, "seq": seq, "kind": kinds})


def _names(element: _Element, found: Columns, strings: Strings) -> tuple[np.ndarray, np.ndarray]:
    """String ids (n,) of operations, and whether they are markers of a program (n,)."""
    both = np.stack([found["kind"], found["operation"]], axis=1)
    used, which = np.unique(both, axis=0, return_inverse=True)
    names, marks = [], []
    for kind, operation in used.tolist():
        known = _at(element.kinds, kind) or records.Kind()
        names.append(strings.id(_at(known.operations, operation) or f"{known.kind or kind} {operation}"))
        marks.append(known.kind in MARKERS)
    which = which.reshape(-1)
    return np.array(names, dtype=np.int32)[which], np.array(marks, dtype=bool)[which]


def _at(values: list[Any], index: int) -> Any:
    return values[index] if 0 <= index < len(values) else None
