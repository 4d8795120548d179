"""What AMD's formats have in common: sizes, copies, markers, dispatch ids, agents."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.words import first_few, plural
from lab.errors import BadDataError
from lab.recordings.capture import (
    KERNEL,
    MEMCPY,
    PROCESS_TABLES,
    PUSH_POP,
    START_END,
    Capture,
    Device,
    Process,
    Strings,
    filled,
)
from lab.recordings.lacks import Lack, doubt, missing
from lab.recordings.tables import NO_SYMBOL, Columns, Table
from lab.stats.columns import distinct

# Numbers of `capture.COPY_KINDS`; rocprofv3 writes MEMORY_COPY_HOST_TO_DEVICE, .rpd CopyHostToDevice.
_COPY_KINDS = {"hosttodevice": 1, "devicetohost": 2, "devicetodevice": 8, "hosttohost": 9}
_DEVICE_MEMORY = 2
# 146 years in ns: a time beyond it would overflow where durations are added up.
LATEST_NS = 1 << 62
_LARGEST = np.iinfo(np.int32).max
API_CATEGORIES = ("HIP_", "HSA_", "RCCL_", "ROCDECODE_", "ROCJPEG_", "MARKER_CONTROL_", "MARKER_NAME_")
MARKERS = ("MARKER_CORE_API", "MARKER_CORE_RANGE_API")
# Of roctx, those that another thread may end; the others nest within their thread.
_START_STOP = ("roctxProcessRangeA", "roctxRangeStartA")
_NO_TEXT = ("roctxGetThreadId",)


@dataclass
class Parts:
    """The tables of one file, process by process."""

    path: Path
    strings: Strings = field(default_factory=Strings)
    tables: dict[str, list[Table]] = field(default_factory=lambda: {name: [] for name in PROCESS_TABLES})
    processes: list[Process] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    lacks: list[Lack] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def times(self, role: str, rows: Columns) -> Columns:
        """start_ns and end_ns (n,) of rows with start and end, equal where the end is missing or before the
        start; a problem counts those.

        Raises BadDataError for times that no clock can have counted.
        """
        start, end = rows["start"], rows["end"]
        if ((start < 0) | (start > LATEST_NS) | (end > LATEST_NS)).any():
            problem = f"{role} with impossible times (below 0 or above 2^62 ns)"
            raise BadDataError(problem, location=self.path)
        if backward := int((end < start).sum()):
            self.problems.append(
                f"{role}: {plural(backward, 'row')} without a valid end, counted as 0 ns long"
            )
        return {"start_ns": start, "end_ns": np.maximum(start, end)}

    def _add(self, name: str, rows: Columns) -> Table:
        table = filled(PROCESS_TABLES[name], rows)
        self.tables[name].append(table)
        return table

    def add_kernels(self, rows: Columns) -> Table:
        """Add dispatches (n,).

        rows: columns of `ops` as they are, and vgprs and accums (registers), static (bytes of the symbol),
        shared (bytes of the dispatch), block_x, items_x and so on, graph, graph_node; -1: not recorded.
        """
        static, shared = rows["static"], rows["shared"]
        columns = {
            "kind": np.full(len(static), KERNEL),
            "regs": narrow(np.where(rows["vgprs"] >= 0, rows["vgprs"] + np.maximum(rows["accums"], 0), -1)),
            "static_smem_bytes": static,
            "dynamic_smem_bytes": np.where(shared >= 0, np.maximum(shared - np.maximum(static, 0), 0), -1),
            **{f"block_{axis}": narrow(rows[f"block_{axis}"]) for axis in "xyz"},
            **{f"grid_{axis}": blocks(rows[f"items_{axis}"], rows[f"block_{axis}"]) for axis in "xyz"},
        }
        return self._add("ops", rows | columns | _graph_columns(rows))

    def add_copies(self, rows: Columns) -> None:
        """Add copies (n,), on the GPU that they reached, else on the one they left.

        rows: columns of `ops` as they are, and target and origin (devices).
        """
        device = np.where(rows["target"] >= 0, rows["target"], rows["origin"])
        columns = copy_columns(self.strings.texts, rows["name_id"]) | {"device": device}
        self._add("ops", rows | columns | _graph_columns(rows))

    def add_calls(
        self, rows: Columns, is_mark: np.ndarray, message_of: Callable[[int], str | None] = lambda _: None
    ) -> Table:
        """Add API calls, which are returned, and the ranges that a program marked with roctx (is_mark (n,)).

        message_of: the text of a row's mark, None where the call's name is all there is.
        """
        strings, marks = self.strings, np.flatnonzero(is_mark)
        calls = [strings.texts[name] for name in rows["name_id"][marks].tolist()]
        messages = map(message_of, marks.tolist())
        texts = [
            call if call in _NO_TEXT else message or call
            for call, message in zip(calls, messages, strict=True)
        ]
        text_id = np.array([strings.id(text) for text in texts], dtype=np.int32)
        name_id, seq = strings.stripped(text_id)
        kinds = np.array([START_END if call in _START_STOP else PUSH_POP for call in calls], dtype=np.int8)
        marked = {name: column[marks] for name, column in rows.items()}
        self._add("ranges", marked | {"text_id": text_id, "name_id": name_id, "seq": seq, "kind": kinds})
        return self._add("api", {name: column[~is_mark] for name, column in rows.items()})

    def judge(self, process: int, ids: np.ndarray, *, calls: bool) -> None:
        """Judge the dispatch ids (n,) of a process, which count 1, 2, 3, ...

        calls: whether API calls were recorded, which show a missing end; the ids alone cannot.
        """
        recorded = ids[ids > 0]
        numbers = distinct(recorded)
        if not len(numbers):
            return
        lowest, highest = int(numbers[0]), int(numbers[-1])
        if lowest > 1:
            n = lowest - 1
            text = f"the first {plural(n, 'dispatch')} of the process, up to id {n}, are not here"
            self.lacks.append(Lack("gpu", "head", "D", process, n, highest, n / highest, text))
        if lost := highest - lowest + 1 - len(numbers):
            words = f"are missing between others: ids {_gaps(numbers)}"
            self.lacks.append(missing("gpu", "hole", "D", lost, highest, "dispatch", words, process))
        if not calls:
            text = f"dispatch ids end at {highest:,}; without API calls later ones may be missing"
            self.lacks.append(doubt("gpu", "D", text, place="tail", process=process, of=highest))
        # Seen in ROCm/rocm-systems#11422 and ROCm/rocm-systems#10439.
        if repeated := len(recorded) - len(numbers):
            self.problems.append(
                f"{plural(repeated, 'row')} repeat the id of another dispatch (kernels replayed for "
                "counters): counts and times include every pass"
            )

    def capture(self, collector: str, schema: str | None = None, **info: str) -> Capture:
        """The capture of all that was added."""
        tables: dict[str, Any] = {
            name: filled(PROCESS_TABLES[name], *parts) for name, parts in self.tables.items()
        }
        return Capture(
            source=self.path,
            collector=collector,
            schema=schema,
            **tables,
            strings=self.strings.texts,
            devices=tuple(self.devices),
            problems=self.problems,
            info={"vendor": "amd", **info},
            processes=tuple(self.processes) or (Process(),),
            lacks=tuple(self.lacks),
        )


def json_object(text: str) -> dict[str, Any]:
    """The object that a cell holds as JSON; empty for anything else."""
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def narrow(column: np.ndarray) -> np.ndarray:
    """The column (n,) with -1 (not recorded) for what no int32 holds, instead of its lowest bits."""
    fitting: np.ndarray = np.where(np.abs(column) > _LARGEST, -1, column)
    return fitting


def blocks(items: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Blocks (n,) of a grid that counts work items; -1 where either is not recorded."""
    recorded = (items >= 0) & (block > 0)
    return narrow(np.where(recorded, -(-items // np.where(recorded, block, 1)), -1))


def kernel_name(kernel: int, shown: str, mangled: str) -> str:
    """The name of a kernel's symbol, demangled where the file has that."""
    return shown or mangled.removesuffix(".kd") or f"kernel {kernel} {NO_SYMBOL}"


def _graph_columns(rows: Columns) -> Columns:
    return {name: np.where(rows[name] > 0, rows[name], -1) for name in ("graph", "graph_node")}


def copy_columns(texts: list[str], name_ids: np.ndarray) -> Columns:
    """kind, copy_kind, src_kind and dst_kind (n,) of copies by their names."""
    bare = [text.lower().replace("_", "").removeprefix("memorycopy").removeprefix("copy") for text in texts]
    kinds = np.array([*(_COPY_KINDS.get(text, -1) for text in bare), -1], dtype=np.int16)[name_ids]
    return {
        "kind": np.full(len(kinds), MEMCPY),
        "copy_kind": kinds,
        "src_kind": np.where(np.isin(kinds, (2, 8)), _DEVICE_MEMORY, -1),
        "dst_kind": np.where(np.isin(kinds, (1, 8)), _DEVICE_MEMORY, -1),
    }


def _gaps(numbers: np.ndarray) -> str:
    """`3, 7 to 9 and 2 more`: the ids between those that were seen, ascending."""
    edges = np.flatnonzero(np.diff(numbers) > 1)
    spans = zip((numbers[edges] + 1).tolist(), (numbers[edges + 1] - 1).tolist(), strict=True)
    return first_few([f"{start:,}" if start == end else f"{start:,} to {end:,}" for start, end in spans], 3)


def device_of_agent(agent: dict[str, Any], ordinal: int, name: str, process: int) -> Device:
    """A GPU from what rocprofiler-sdk writes about its agent; the clock is the highest it can have."""
    clock_mhz, units = (_positive(agent.get(key)) for key in ("max_engine_clk_fcompute", "cu_count"))
    banks = agent.get("mem_banks")
    sizes = [
        _positive(bank.get("size_in_bytes"))
        for bank in (banks if isinstance(banks, list) else [])
        if isinstance(bank, dict)
    ]
    return Device(
        device=ordinal,
        name=name,
        process=process,
        memory_bytes=sum(size or 0 for size in sizes) or None,
        clock_hz=clock_mhz * 1_000_000 if clock_mhz else None,
        num_sms=units,
    )


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and 0 < value < 1 << 50 else None
