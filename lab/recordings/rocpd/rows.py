"""Kernels, copies, calls and ranges of one section."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import (
    API_COLUMNS,
    KERNEL,
    MEMCPY,
    OPS_COLUMNS,
    PUSH_POP,
    RANGE_COLUMNS,
    START_END,
    Strings,
    filled,
)
from lab.recordings.counters import counter_table
from lab.recordings.rocm import (
    API_CATEGORIES,
    MARKERS,
    NO_TEXT,
    START_STOP,
    blocks,
    copy_columns,
    narrow,
    sound_times,
)
from lab.recordings.rocpd.people import People
from lab.recordings.rocpd.section import Section
from lab.recordings.sqlite import lookup
from lab.recordings.tables import NO_SYMBOL, Table

_DISPATCH = "start end pid agent_id kernel_id dispatch_id stream_id event_id"
_SIZES = "workgroup_size_x workgroup_size_y workgroup_size_z grid_size_x grid_size_y grid_size_z"
_GRAPH = "graph_exec_id graph_node_id"
_SYMBOL = "group_segment_size arch_vgpr_count accum_vgpr_count"


def read_dispatches(section: Section, people: People, strings: Strings) -> tuple[Table, np.ndarray]:
    """The kernels, every row of the table, and their dispatch ids (n,)."""
    found = section.integers("kernel_dispatch", _DISPATCH, f"{_SIZES} {_GRAPH} group_segment_size")
    times = _times(section, "kernel_dispatch", found["start"], found["end"])
    symbols = section.integers("info_kernel_symbol", "id", _SYMBOL)
    static, vgprs, accums = (
        lookup(symbols["id"], symbols[name], found["kernel_id"]) for name in _SYMBOL.split()
    )
    _note_without(section, "kernel dispatch", "event", found["event_id"], section.events["id"])
    _note_without(section, "kernel dispatch", "kernel symbol", found["kernel_id"], symbols["id"])
    sizes = {f"block_{axis}": narrow(found[f"workgroup_size_{axis}"]) for axis in "xyz"} | {
        f"grid_{axis}": blocks(found[f"grid_size_{axis}"], found[f"workgroup_size_{axis}"]) for axis in "xyz"
    }
    columns = times | {
        "kind": np.full(len(found["start"]), KERNEL),
        "process": people.process_of(found["pid"]),
        "pid": people.pid_of(found["pid"]),
        "name_id": _kernel_names(section, found["kernel_id"], strings),
        "device": people.device_of(found["agent_id"]),
        "stream": found["stream_id"],
        "corr": section.of_event("stack_id", found["event_id"]),
        "graph": np.where(found["graph_exec_id"] > 0, found["graph_exec_id"], -1),
        "graph_node": np.where(found["graph_node_id"] > 0, found["graph_node_id"], -1),
        "regs": narrow(np.where(vgprs >= 0, vgprs + np.maximum(accums, 0), -1)),
        "static_smem_bytes": static,
        "dynamic_smem_bytes": np.where(
            found["group_segment_size"] >= 0,
            np.maximum(found["group_segment_size"] - np.maximum(static, 0), 0),
            -1,
        ),
    }
    return filled(OPS_COLUMNS, len(found["start"]), columns | sizes), found["dispatch_id"]


def _kernel_names(section: Section, kernels: np.ndarray, strings: Strings) -> np.ndarray:
    shown = section.texts("info_kernel_symbol", "display_name")
    mangled = section.texts("info_kernel_symbol", "kernel_name")

    def name(kernel: int) -> str:
        found = shown.get(kernel) or mangled.get(kernel, "").removesuffix(".kd")
        return found or f"kernel {kernel} {NO_SYMBOL}"

    return _by_id(kernels, lambda kernel: strings.id(name(kernel)))


def read_counters(section: Section, kernels: Table, strings: Strings) -> Table:
    """The hardware counters of `kernels`, which are all rows of the table of dispatches, in its order."""
    found = section.integers("pmc_event", "event_id pmc_id")
    values = section.numbers("pmc_event", "value")
    events = section.integers("kernel_dispatch", "event_id")["event_id"]
    row = lookup(events, np.arange(len(events)), found["event_id"])
    sound = (row >= 0) & np.isfinite(values)
    if lost := int((~sound).sum()):
        section.database.problems.append(
            f"{plural(lost, 'counter value')} of no dispatch, or no number: left out"
        )
    names, units = section.texts("info_pmc", "name"), section.texts("info_pmc", "units")
    row, pmc, event = row[sound], found["pmc_id"][sound], found["event_id"][sound]
    counter = _by_id(pmc, lambda one: strings.id(names.get(one) or f"counter {one}"))
    unit = _by_id(pmc, lambda one: strings.id(units[one]) if units.get(one) else -1)
    keys = np.column_stack([kernels.process[row], kernels.name_id[row], counter, unit])
    return counter_table(keys, event, values[sound])


def read_copies(section: Section, people: People, strings: Strings) -> Table:
    """The memory copies, every row of the table, on the GPU that they reached, else on the one they left."""
    found = section.integers(
        "memory_copy", "start end pid name_id event_id", f"{_GRAPH} size stream_id dst_agent_id src_agent_id"
    )
    times = _times(section, "memory_copy", found["start"], found["end"])
    target, origin = people.device_of(found["dst_agent_id"]), people.device_of(found["src_agent_id"])
    names = _by_id(found["name_id"], lambda one: strings.id(section.strings.get(one, "memory copy")))
    columns = times | {
        "kind": np.full(len(names), MEMCPY),
        "process": people.process_of(found["pid"]),
        "pid": people.pid_of(found["pid"]),
        "name_id": names,
        "device": np.where(target >= 0, target, origin),
        "stream": found["stream_id"],
        "corr": section.of_event("stack_id", found["event_id"]),
        "bytes": found["size"],
        "graph": np.where(found["graph_exec_id"] > 0, found["graph_exec_id"], -1),
        "graph_node": np.where(found["graph_node_id"] > 0, found["graph_node_id"], -1),
        **copy_columns(strings.texts, names),
    }
    return filled(OPS_COLUMNS, len(names), columns)


def read_calls(section: Section, people: People, strings: Strings) -> tuple[Table, Table]:
    """The API calls, and the ranges: what the program marked. Calls and marks of no duration are samples."""
    regions = section.integers("region", "start end pid tid name_id event_id")
    tracks = section.integers("track", "id", "pid tid")
    samples = section.integers("sample", "timestamp track_id event_id")
    times = _times(section, "region", regions["start"], regions["end"])
    pid, tid = (lookup(tracks["id"], tracks[name], samples["track_id"]) for name in ("pid", "tid"))
    rows = {
        "start": np.concatenate([times["start_ns"], samples["timestamp"]]),
        "end": np.concatenate([times["end_ns"], samples["timestamp"]]),
        "pid": np.concatenate([regions["pid"], pid]),
        "tid": np.concatenate([regions["tid"], tid]),
        "name": np.concatenate([regions["name_id"], np.full(len(pid), -1)]),
        "event": np.concatenate([regions["event_id"], samples["event_id"]]),
    }
    category = section.of_event("category_id", rows["event"])
    # A sample has no name of its own: its category says what it was.
    rows["name"] = np.where(rows["name"] < 0, category, rows["name"])
    is_call = _by_id(category, lambda one: int(_is_call(section.strings.get(one, "")))).astype(bool)
    named_so = _by_id(
        rows["name"], lambda one: int(section.strings.get(one, "").startswith(("hip", "__hip")))
    )
    is_call |= (category < 0) & named_so.astype(bool)
    shared = {
        "start_ns": rows["start"],
        "end_ns": rows["end"],
        "process": people.process_of(rows["pid"]),
        "pid": people.pid_of(rows["pid"]),
        "tid": people.tid_of(rows["tid"]),
    }
    names = _by_id(rows["name"], lambda one: strings.id(section.strings.get(one, "")))
    corr = section.of_event("stack_id", rows["event"])
    api = filled(API_COLUMNS, len(names), shared | {"name_id": names, "corr": corr}).where(is_call)
    ranges = filled(RANGE_COLUMNS, len(names), shared).where(~is_call)
    more = _range_columns(section, rows, strings, np.flatnonzero(~is_call))
    return api, Table(ranges.as_dict() | more)


def _is_call(category: str) -> bool:
    return category.startswith(API_CATEGORIES) and category not in MARKERS


def _range_columns(
    section: Section, rows: dict[str, np.ndarray], strings: Strings, at: np.ndarray
) -> dict[str, np.ndarray]:
    """text_id, name_id, seq and kind of the rows at `at`: a marker's text stands in its event."""
    messages = _messages(section) if len(at) else {}
    names = [section.strings.get(one, "") for one in rows["name"][at].tolist()]
    events = rows["event"][at].tolist()
    texts = np.array(
        [
            strings.id(name if name in NO_TEXT else messages.get(event) or name)
            for name, event in zip(names, events, strict=True)
        ],
        dtype=np.int32,
    )
    bare, seq = strings.stripped(texts)
    kinds = np.array([START_END if name in START_STOP else PUSH_POP for name in names], dtype=np.int8)
    return {"text_id": texts, "name_id": bare, "seq": seq, "kind": kinds}


def _messages(section: Section) -> dict[int, str]:
    """Texts of markers by event."""
    marks = [one for one, text in section.strings.items() if text in MARKERS]
    known = set(section.events["id"][np.isin(section.events["category_id"], marks)].tolist())
    found = {}
    for event, text in section.texts("event", "extdata").items():
        if event in known and (message := _message(text)):
            found[event] = message
    return found


def _message(text: str) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    message = found.get("message") if isinstance(found, dict) else None
    return message if isinstance(message, str) else ""


def _by_id(ids: np.ndarray, of: Callable[[int], int]) -> np.ndarray:
    """of(id) for each of `ids` (n,), called once per distinct id."""
    used, which = np.unique(ids, return_inverse=True)
    found: np.ndarray = np.array([of(one) for one in used.tolist()], dtype=np.int32)[which]
    return found


def _times(section: Section, table: str, start: np.ndarray, end: np.ndarray) -> dict[str, np.ndarray]:
    return sound_times(section.database.path, f"rows of {table}", start, end, section.database.problems)


def _note_without(section: Section, row: str, what: str, ids: np.ndarray, known: np.ndarray) -> None:
    if absent := int((~np.isin(ids, known)).sum()):
        section.database.problems.append(
            f"{plural(absent, row, row + 'es')} without {what}: kept, though the file's own views drop them"
        )
