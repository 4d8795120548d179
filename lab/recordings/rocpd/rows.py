"""Kernels, copies, calls and ranges of one section."""

from __future__ import annotations

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import API_COLUMNS, OPS_COLUMNS, RANGE_COLUMNS, Strings, filled
from lab.recordings.counters import counter_table
from lab.recordings.rocm import (
    API_CATEGORIES,
    MARKERS,
    Columns,
    copy_columns,
    graph_columns,
    json_object,
    kernel_columns,
    marker_columns,
    sound_times,
)
from lab.recordings.rocpd.people import People
from lab.recordings.rocpd.section import Section
from lab.recordings.sqlite import lookup
from lab.recordings.tables import NO_SYMBOL, Table
from lab.stats.columns import per_distinct

_DISPATCH = "start end pid agent_id kernel_id dispatch_id stream_id event_id"
_SIZES = " ".join(f"block_{axis}=workgroup_size_{axis} items_{axis}=grid_size_{axis}" for axis in "xyz")
_GRAPH = "graph=graph_exec_id graph_node=graph_node_id"
_SYMBOL = "static=group_segment_size vgprs=arch_vgpr_count accums=accum_vgpr_count"


def read_dispatches(section: Section, people: People, strings: Strings) -> tuple[Table, np.ndarray]:
    """The kernels, every row of the table, and their dispatch ids (n,)."""
    rows = section.integers("kernel_dispatch", _DISPATCH, f"{_SIZES} {_GRAPH} shared=group_segment_size")
    symbols = section.integers("info_kernel_symbol", "id", _SYMBOL)
    symbol_ids = symbols.pop("id")
    rows |= {name: lookup(symbol_ids, column, rows["kernel_id"]) for name, column in symbols.items()}
    _note_without(section, "event", rows["event_id"], section.events["id"])
    _note_without(section, "kernel symbol", rows["kernel_id"], symbol_ids)
    columns = {
        **_shared(section, people, "kernel_dispatch", rows),
        **kernel_columns(rows),
        "name_id": _kernel_names(section, rows["kernel_id"], strings),
        "device": people.device_of(rows["agent_id"]),
        "stream": rows["stream_id"],
    }
    return filled(OPS_COLUMNS, len(rows["start"]), columns), rows["dispatch_id"]


def _shared(section: Section, people: People, table: str, rows: Columns) -> Columns:
    """Times, process and correlation of rows (n,) with start, end, pid and event_id."""
    database = section.database
    times = sound_times(database.path, f"rows of {table}", rows["start"], rows["end"], database.problems)
    return times | {
        "process": people.process_of(rows["pid"]),
        "pid": people.pid_of(rows["pid"]),
        "corr": section.of_event("stack_id", rows["event_id"]),
    }


def _kernel_names(section: Section, kernels: np.ndarray, strings: Strings) -> np.ndarray:
    shown = section.texts("info_kernel_symbol", "display_name")
    mangled = section.texts("info_kernel_symbol", "kernel_name")

    def name(kernel: int) -> str:
        text = shown.get(kernel) or mangled.get(kernel, "").removesuffix(".kd")
        return text or f"kernel {kernel} {NO_SYMBOL}"

    return per_distinct(kernels, lambda kernel: strings.id(name(kernel)))


def read_counters(section: Section, kernels: Table, strings: Strings) -> Table:
    """The hardware counters of `kernels`, which are all rows of the table of dispatches, in its order."""
    samples = section.integers("pmc_event", "event_id pmc_id")
    values = section.numbers("pmc_event", "value")
    events = section.integers("kernel_dispatch", "event_id")["event_id"]
    row = lookup(events, np.arange(len(events)), samples["event_id"])
    sound = (row >= 0) & np.isfinite(values)
    if lost := int((~sound).sum()):
        section.database.problems.append(
            f"{plural(lost, 'counter value')} of no dispatch, or no number: left out"
        )
    names, units = section.texts("info_pmc", "name"), section.texts("info_pmc", "units")
    row, counters, event = row[sound], samples["pmc_id"][sound], samples["event_id"][sound]
    counter = per_distinct(counters, lambda key: strings.id(names.get(key) or f"counter {key}"))
    unit = per_distinct(counters, lambda key: strings.id(units[key]) if units.get(key) else -1)
    keys = np.column_stack([kernels.process[row], kernels.name_id[row], counter, unit])
    return counter_table(keys, event, values[sound])


def read_copies(section: Section, people: People, strings: Strings) -> Table:
    """The memory copies, every row of the table, on the GPU that they reached, else on the one they left."""
    rows = section.integers(
        "memory_copy", "start end pid name_id event_id", f"{_GRAPH} size stream_id dst_agent_id src_agent_id"
    )
    target, origin = people.device_of(rows["dst_agent_id"]), people.device_of(rows["src_agent_id"])
    names = per_distinct(rows["name_id"], lambda key: strings.id(section.strings.get(key, "memory copy")))
    columns = {
        **_shared(section, people, "memory_copy", rows),
        **copy_columns(strings.texts, names),
        **graph_columns(rows),
        "name_id": names,
        "device": np.where(target >= 0, target, origin),
        "stream": rows["stream_id"],
        "bytes": rows["size"],
    }
    return filled(OPS_COLUMNS, len(names), columns)


def read_calls(section: Section, people: People, strings: Strings) -> tuple[Table, Table]:
    """The API calls, and the ranges: what the program marked. Calls and marks of no duration are samples."""
    regions = section.integers("region", "start end pid tid name_id event_id")
    tracks = section.integers("track", "id", "pid tid")
    samples = section.integers("sample", "start=timestamp end=timestamp track_id event_id")
    samples |= {name: lookup(tracks["id"], tracks[name], samples["track_id"]) for name in ("pid", "tid")}
    samples["name_id"] = np.full(len(samples["pid"]), -1)
    # The recorder of samples gives one time: only regions can lack their end.
    rows = {name: np.concatenate([column, samples[name]]) for name, column in regions.items()}
    shared = _shared(section, people, "region", rows) | {"tid": people.tid_of(rows["tid"])}
    category = section.of_event("category_id", rows["event_id"])
    # A sample has no name of its own: its category says what it was.
    names = np.where(rows["name_id"] < 0, category, rows["name_id"])
    is_call = per_distinct(category, lambda key: _is_call(section.strings.get(key, ""))) > 0
    is_hip = per_distinct(names, lambda key: section.strings.get(key, "").startswith(("hip", "__hip"))) > 0
    is_call |= (category < 0) & is_hip
    marks = np.flatnonzero(~is_call)
    messages = _messages(section) if len(marks) else {}
    calls = [section.strings.get(key, "") for key in names[marks].tolist()]
    events = map(messages.get, rows["event_id"][marks].tolist())
    shared["name_id"] = per_distinct(names, lambda key: strings.id(section.strings.get(key, "")))
    api = filled(API_COLUMNS, len(names), shared).where(is_call)
    ranges = filled(RANGE_COLUMNS, len(names), shared).take(marks)
    marked = marker_columns(strings, zip(calls, events, strict=True))
    return api, Table(ranges.as_dict() | marked)


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
