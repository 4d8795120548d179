"""Kernels, copies, calls and ranges of one section."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import Device, Process
from lab.recordings.rocm import (
    API_CATEGORIES,
    MARKERS,
    Parts,
    device_of_agent,
    json_object,
    kernel_name,
    narrow,
)
from lab.recordings.sqlite import Database, lookup, quoted
from lab.recordings.tables import Columns, Table
from lab.stats.columns import per_distinct

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK")
_TABLES = ("kernel_dispatch", "memory_copy", "region")


TABLE = re.compile(r"rocpd_kernel_dispatch(_[0-9A-Fa-f]{8}(?:_[0-9A-Fa-f]{4}){3}_[0-9A-Fa-f]{12}|)")
_WITH_ROWS = ("info_process", "kernel_dispatch", "memory_copy", "region", "sample")


@dataclass(frozen=True)
class Section:
    """One guid's rows: of the tables `rocpd_*<suffix>` those with its guid; all, if it is alone in them.

    base: the index of its first process in the capture.
    """

    database: Database
    suffix: str
    guid: str | None
    alone: bool = True
    base: int = 0

    def name(self, table: str) -> str:
        return f"rocpd_{table}{self.suffix}"

    @property
    def _only(self) -> tuple[str, tuple[object, ...]]:
        return ("", ()) if self.alone else ("WHERE guid IS ?", (self.guid,))

    def integers(self, table: str, needed: str, optional: str = "") -> dict[str, np.ndarray]:
        """Columns (n,): names as in the file, or `ours=theirs`; see `Database.integers`."""
        only, values = self._only
        return self.database.integers(self.name(table), _pairs(needed), _pairs(optional), only, values)

    def texts(self, table: str, text: str, key: str = "id") -> dict[int, str]:
        return self.database.texts(self.name(table), key, text, *self._only)

    @cached_property
    def strings(self) -> dict[int, str]:
        return self.texts("string", "string")

    @cached_property
    def events(self) -> Columns:
        return self.integers("event", "id category_id stack_id")

    def of_event(self, column: str, event_ids: np.ndarray) -> np.ndarray:
        return lookup(self.events["id"], self.events[column], event_ids)

    @cached_property
    def described(self) -> Columns:
        return self.integers("info_process", "id", "pid nid start end init fini")

    @cached_property
    def process_ids(self) -> np.ndarray:
        """Every process that has rows, whether or not the file describes it."""
        with_rows = [self.integers(table, "pid")["pid"] for table in _TABLES]
        ids = np.unique(np.concatenate([self.described["id"], *with_rows]))
        # Rows without a process belong to the only one there is.
        ids = ids[ids >= 0] if (ids >= 0).sum() == 1 else ids
        return ids if len(ids) else np.array([-1])

    @cached_property
    def environments(self) -> list[dict[str, str]]:
        """Of each process the variables on the list: ranks and what the profiler was told to trace."""
        texts = self.texts("info_process", "environment")
        # The environment holds secrets: only the names on the list leave this function.
        return [
            {
                name: str(value)[:64]
                for name, value in json_object(texts.get(process, "")).items()
                if name in _RANKS or (name.startswith("ROCPROF_") and name.endswith("_TRACE"))
            }
            for process in self.process_ids.tolist()
        ]

    @cached_property
    def processes(self) -> list[Process]:
        return [
            _process(self.described, process, environment)
            for process, environment in zip(self.process_ids.tolist(), self.environments, strict=True)
        ]

    def process_of(self, pid_ids: np.ndarray) -> np.ndarray:
        """Indices (n,) of the capture's processes; a row without one belongs to the only one there is."""
        return lookup(self.process_ids, np.arange(len(self.process_ids)), pid_ids, 0) + self.base

    def pid_of(self, pid_ids: np.ndarray) -> np.ndarray:
        pids = np.array([-1 if process.pid is None else process.pid for process in self.processes])
        return lookup(self.process_ids, pids, pid_ids)

    def tid_of(self, thread_ids: np.ndarray) -> np.ndarray:
        threads = self.integers("info_thread", "id", "tid")
        return lookup(threads["id"], threads["tid"], thread_ids)

    @cached_property
    def gpus(self) -> Columns:
        agents, kinds = self.integers("info_agent", "id", "type_index pid"), self.texts("info_agent", "type")
        is_gpu = np.array([kinds.get(agent) == "GPU" for agent in agents["id"].tolist()], dtype=bool)
        return {name: column[is_gpu] for name, column in agents.items()}

    def device_of(self, agent_ids: np.ndarray) -> np.ndarray:
        """The GPU's ordinal (n,); an agent's own number counts CPUs too. -1 for a CPU."""
        return narrow(lookup(self.gpus["id"], self.gpus["type_index"], agent_ids))

    def devices(self) -> list[Device]:
        names, details = self.texts("info_agent", "product_name"), self.texts("info_agent", "extdata")
        index = lookup(self.process_ids, np.arange(len(self.process_ids)), self.gpus["pid"])
        processes = np.where(index >= 0, self.base + index, -1)
        rows = zip(
            self.gpus["id"].tolist(), self.gpus["type_index"].tolist(), processes.tolist(), strict=True
        )
        return [
            device_of_agent(json_object(details.get(agent, "")), ordinal, names.get(agent, ""), process)
            for agent, ordinal, process in rows
        ]


def _process(described: Columns, process: int, environment: dict[str, str]) -> Process:
    """The process with this id, by its row of info_process where it has one."""
    at_id = {name: column[described["id"] == process].tolist() for name, column in described.items()}

    def positive(*names: str) -> int | None:
        return next((at_id[name][0] for name in names if at_id[name] and at_id[name][0] > 0), None)

    pids = [*at_id["pid"], process]
    pid = pids[0] if pids[0] >= 0 else process
    ranks = [environment[name] for name in _RANKS if environment.get(name, "").isdecimal()]
    return Process(
        pid=pid if pid >= 0 else None,
        rank=int(ranks[0]) if ranks and len(ranks[0]) < 8 else None,
        start_ns=positive("start", "init"),
        end_ns=positive("end", "fini"),
    )


def _pairs(names: str) -> dict[str, str]:
    return {name.split("=")[0]: name.split("=")[-1] for name in names.split()}


def sections_of(database: Database) -> list[Section]:
    """One section per guid, in the order of the tables' names."""
    sections: list[Section] = []
    for table in database.columns:
        if match := TABLE.fullmatch(table):
            suffix = match[1]
            guids = _guids(database, suffix) or [suffix.strip("_").replace("_", "-") or None]
            sections += [Section(database, suffix, guid, alone=len(guids) == 1) for guid in guids]
    return sections


def _guids(database: Database, suffix: str) -> list[str | None]:
    """The guids in the rows of tables of one suffix: one, unless a merge wrote several files into them."""
    guids: set[str | None] = set()
    for name in _WITH_ROWS:
        table = f"rocpd_{name}{suffix}"
        if "guid" in database.columns.get(table, ()):
            # A hostile file may hold another guid in every row.
            rows = database.connection.execute(f"SELECT DISTINCT guid FROM {quoted(table)} LIMIT 10000")
            guids |= {None if guid is None else str(guid) for (guid,) in rows}
    return sorted(guids, key=str)


_DISPATCH = "start end pid agent_id kernel_id dispatch_id stream=stream_id event_id"
_SIZES = " ".join(f"block_{axis}=workgroup_size_{axis} items_{axis}=grid_size_{axis}" for axis in "xyz")
# Graph ids came with ROCm/rocm-systems#6498; older files lack the columns.
_GRAPH = "graph=graph_exec_id graph_node=graph_node_id"
_SYMBOL = "static=group_segment_size vgprs=arch_vgpr_count accums=accum_vgpr_count"


def add_dispatches(section: Section, parts: Parts) -> tuple[Table, np.ndarray]:
    """Add the kernels, every row of the table; returns them and their dispatch ids (n,)."""
    rows = section.integers("kernel_dispatch", _DISPATCH, f"{_SIZES} {_GRAPH} shared=group_segment_size")
    symbols = section.integers("info_kernel_symbol", "id", _SYMBOL)
    symbol_ids = symbols.pop("id")
    rows |= {name: lookup(symbol_ids, column, rows["kernel_id"]) for name, column in symbols.items()}
    # The file's own views drop such rows in inner joins: roc-optiq#596 shows one lost.
    _note_without(section, "event", rows["event_id"], section.events["id"])
    _note_without(section, "kernel symbol", rows["kernel_id"], symbol_ids)
    rows |= _shared(section, "kernel_dispatch", rows, parts)
    shown = section.texts("info_kernel_symbol", "display_name")
    mangled = section.texts("info_kernel_symbol", "kernel_name")

    def name_of(kernel: int) -> int:
        return parts.strings.id(kernel_name(kernel, shown.get(kernel, ""), mangled.get(kernel, "")))

    rows["name_id"] = per_distinct(rows["kernel_id"], name_of)
    return parts.add_kernels(rows | {"device": section.device_of(rows["agent_id"])}), rows["dispatch_id"]


def _shared(section: Section, table: str, rows: Columns, parts: Parts) -> Columns:
    """Times, process and correlation of rows (n,) with start, end, pid and event_id."""
    return parts.times(f"rows of {table}", rows) | {
        "process": section.process_of(rows["pid"]),
        "pid": section.pid_of(rows["pid"]),
        "corr": section.of_event("stack_id", rows["event_id"]),
    }


def add_copies(section: Section, parts: Parts) -> None:
    """Add the memory copies, every row of the table."""
    optional = f"{_GRAPH} bytes=size stream=stream_id target=dst_agent_id origin=src_agent_id"
    rows = section.integers("memory_copy", "start end pid name_id event_id", optional)
    rows |= _shared(section, "memory_copy", rows, parts)
    rows |= {name: section.device_of(rows[name]) for name in ("target", "origin")}
    rows["name_id"] = _names(section, rows["name_id"], parts, "memory copy")
    parts.add_copies(rows)


def _names(section: Section, ids: np.ndarray, parts: Parts, default: str = "") -> np.ndarray:
    return per_distinct(ids, lambda key: parts.strings.id(section.strings.get(key, default)))


def add_calls(section: Section, parts: Parts) -> Table:
    """Add the API calls, which are returned, and the ranges that the program marked. Calls and marks of no
    duration are samples."""
    regions = section.integers("region", "start end pid tid name_id event_id")
    tracks = section.integers("track", "id", "pid tid")
    samples = section.integers("sample", "start=timestamp end=timestamp track_id event_id")
    samples |= {name: lookup(tracks["id"], tracks[name], samples["track_id"]) for name in ("pid", "tid")}
    samples["name_id"] = np.full(len(samples["pid"]), -1)
    # The recorder of samples gives one time: only regions can lack their end.
    rows = {name: np.concatenate([column, samples[name]]) for name, column in regions.items()}
    shared = _shared(section, "region", rows, parts) | {"tid": section.tid_of(rows["tid"])}
    category = section.of_event("category_id", rows["event_id"])
    # A sample has no name of its own: its category says what it was.
    names = np.where(rows["name_id"] < 0, category, rows["name_id"])
    is_call = per_distinct(category, lambda key: _is_call(section.strings.get(key, ""))) > 0
    is_hip = per_distinct(names, lambda key: section.strings.get(key, "").startswith(("hip", "__hip"))) > 0
    # Where a category is missing, HIP calls are known by their names.
    is_call |= (category < 0) & is_hip
    messages = {} if is_call.all() else _messages(section)
    shared["name_id"] = _names(section, names, parts)
    return parts.add_calls(shared, ~is_call, lambda row: messages.get(int(rows["event_id"][row])))


def _is_call(category: str) -> bool:
    return category.startswith(API_CATEGORIES) and category not in MARKERS


def _messages(section: Section) -> dict[int, str]:
    """Texts of markers by event."""
    kinds = [key for key, text in section.strings.items() if text in MARKERS]
    events = set(section.events["id"][np.isin(section.events["category_id"], kinds)].tolist())
    messages = {}
    for event, text in section.texts("event", "extdata").items():
        message = json_object(text).get("message") if event in events else None
        if isinstance(message, str) and message:
            messages[event] = message
    return messages


def _note_without(section: Section, part: str, ids: np.ndarray, recorded: np.ndarray) -> None:
    if absent := int((~np.isin(ids, recorded)).sum()):
        section.database.problems.append(
            f"{plural(absent, 'kernel dispatch')} without {part}: kept, though the file's own views drop them"
        )
