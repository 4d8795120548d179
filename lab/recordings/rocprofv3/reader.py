"""Reader of one rocprofv3 file into a capture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.recordings.capture import Capture, Process, Strings
from lab.recordings.rocm import (
    MARKERS,
    Parts,
    call_tables,
    copy_table,
    device_of_agent,
    kernel_name,
    kernel_table,
    narrow,
    sound_times,
)
from lab.recordings.rocprofv3 import scan
from lab.recordings.rocprofv3.scan import Columns
from lab.recordings.sqlite import lookup
from lab.recordings.tables import Table
from lab.stats.columns import per_distinct


@dataclass(frozen=True)
class _Element:
    """One process' element of the list, still with the file's own ids."""

    path: Path
    raw: scan.Element

    @cached_property
    def gpus(self) -> dict[int, dict[str, Any]]:
        """Agents by handle."""
        # Type 1 is a CPU, 2 a GPU; both are numbered as agents.
        agents = [agent for agent in self.raw.agents if isinstance(agent, dict) and agent.get("type") == 2]
        return {_handle(agent): agent for agent in agents if _ordinal(agent) >= 0}

    def device_of(self, handles: np.ndarray) -> np.ndarray:
        """The GPU's ordinal (n,) by its agent's handle; -1 for a CPU."""
        ordinals = np.array([_ordinal(agent) for agent in self.gpus.values()], dtype=np.int64)
        return narrow(lookup(np.array([*self.gpus], dtype=np.int64), ordinals, handles))


def load(path: Path | str) -> Capture:
    """Read one file, plain or gzip.

    Raises MissingError without the file; BadDataError if it is truncated, damaged, or has rows that the tool
    does not write.
    """
    path = Path(path)
    strings, parts = Strings(), Parts()
    for process, raw in enumerate(scan.read_document(path)):
        element = _Element(path, raw)
        kernels, dispatches = _kernels(element, process, strings, parts.problems)
        calls, marks = _calls(element, process, strings, parts.problems)
        parts.add_dispatches(process, dispatches, calls=len(calls) > 0)
        parts.ops += [kernels, _copies(element, process, strings, parts.problems)]
        parts.api.append(calls)
        parts.ranges.append(marks)
        parts.processes.append(_process(raw.metadata))
        parts.devices += [
            device_of_agent(agent, _ordinal(agent), str(agent.get("product_name", "")), process)
            for agent in element.gpus.values()
        ]
    return parts.capture(path, "rocprofv3", strings)


def _process(metadata: scan.Process) -> Process:
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


def _rows(element: _Element, record: str, process: int, problems: list[str]) -> Columns:
    rows = scan.read_columns(element.raw, record, element.path)
    size = len(rows["start_ns"])
    times = sound_times(element.path, "rows", rows["start_ns"], rows["end_ns"], problems)
    return rows | times | {"process": np.full(size, process), "pid": np.full(size, element.raw.metadata.pid)}


def _kernels(
    element: _Element, process: int, strings: Strings, problems: list[str]
) -> tuple[Table, np.ndarray]:
    rows = _rows(element, "dispatch", process, problems)
    symbols = {symbol.kernel_id: symbol for symbol in element.raw.kernel_symbols}

    def of_symbol(kernel: int) -> tuple[int, int, int, int]:
        symbol = symbols.get(kernel) or scan.Symbol(kernel)
        name = strings.id(kernel_name(kernel, symbol.formatted_kernel_name, symbol.kernel_name))
        return name, symbol.group_segment_size, symbol.arch_vgpr_count, symbol.accum_vgpr_count

    columns = per_distinct(rows["kernel"], of_symbol, width=4).T
    rows |= dict(zip(("name_id", "static", "vgprs", "accums"), columns, strict=True))
    return kernel_table(rows | {"device": element.device_of(rows["agent"])}), rows["dispatch"]


def _copies(element: _Element, process: int, strings: Strings, problems: list[str]) -> Table:
    rows = _rows(element, "copy", process, problems)
    rows |= {name: element.device_of(rows[name]) for name in ("target", "origin")}
    return copy_table(rows | {"name_id": _names(element, rows, strings)[0]}, strings)


def _calls(element: _Element, process: int, strings: Strings, problems: list[str]) -> tuple[Table, Table]:
    """The API calls, and the ranges that the program marked."""
    rows = _rows(element, "call", process, problems)
    rows["name_id"], is_mark = _names(element, rows, strings)
    messages = {marker.key: marker.value for marker in element.raw.strings.marker_api}
    return call_tables(rows, is_mark, strings, lambda row: messages.get(int(rows["corr"][row])))


def _names(element: _Element, rows: Columns, strings: Strings) -> tuple[np.ndarray, np.ndarray]:
    """String ids (n,) of operations, and whether they are markers of a program (n,)."""

    def of_pair(pair: list[int]) -> tuple[int, bool]:
        number, operation = pair
        kind = _at(element.raw.strings.buffer_records, number) or scan.Kind()
        name = _at(kind.operations, operation) or f"{kind.kind or number} {operation}"
        return strings.id(name), kind.kind in MARKERS

    pairs = np.stack([rows["kind"], rows["operation"]], axis=1)
    names, marks = per_distinct(pairs, of_pair, width=2).T
    return names, marks > 0


def _at(values: list[Any], index: int) -> Any:
    return values[index] if 0 <= index < len(values) else None
