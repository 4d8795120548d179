"""Reader of one rocprofv3 file into a capture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
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
from lab.recordings.rocprofv3 import scan
from lab.recordings.rocprofv3.scan import Columns
from lab.recordings.sqlite import lookup
from lab.recordings.tables import NO_SYMBOL, Table
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

    def rows(self, record: str) -> Columns:
        return scan.read_columns(self.raw, record, self.path)


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


def _shared(element: _Element, process: int, rows: Columns, problems: list[str]) -> Columns:
    size = len(rows["start_ns"])
    return sound_times(element.path, "rows", rows["start_ns"], rows["end_ns"], problems) | {
        "process": np.full(size, process),
        "pid": np.full(size, element.raw.metadata.pid),
        "corr": rows["corr"],
    }


def _kernels(
    element: _Element, process: int, strings: Strings, problems: list[str]
) -> tuple[Table, np.ndarray]:
    rows = element.rows("dispatch")
    symbols = {symbol.kernel_id: symbol for symbol in element.raw.kernel_symbols}

    def of_symbol(kernel: int) -> tuple[int, int, int, int]:
        symbol = symbols.get(kernel)
        sizes = symbol or scan.Symbol(kernel)
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


def _kernel_name(kernel: int, symbol: scan.Symbol | None) -> str:
    name = (symbol.formatted_kernel_name or symbol.kernel_name.removesuffix(".kd")) if symbol else ""
    return name or f"kernel {kernel} {NO_SYMBOL}"


def _copies(element: _Element, process: int, strings: Strings, problems: list[str]) -> Table:
    rows = element.rows("copy")
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
    rows = element.rows("call")
    names, is_mark = _names(element, rows, strings)
    shared = _shared(element, process, rows, problems) | {"tid": rows["tid"], "name_id": names}
    calls = [strings.texts[name] for name in names[is_mark].tolist()]
    messages_by_id = {marker.key: marker.value for marker in element.raw.strings.marker_api}
    messages = map(messages_by_id.get, rows["corr"][is_mark].tolist())
    ranges = filled(RANGE_COLUMNS, len(names), shared).where(is_mark)
    marked = marker_columns(strings, zip(calls, messages, strict=True))
    return filled(API_COLUMNS, len(names), shared).where(~is_mark), Table(ranges.as_dict() | marked)


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
