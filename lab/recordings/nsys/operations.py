"""GPU operations, API calls and waits of an export."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import (
    API_COLUMNS,
    COPY_KINDS,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    NODE_COLUMNS,
    OP,
    OPS_COLUMNS,
    PUSH_POP,
    RANGE_COLUMNS,
    START_END,
    SYNC_COLUMNS,
    filled,
)
from lab.recordings.lacks import Lack, missing
from lab.recordings.nsys.export import PREFIX, Export, StringIds, among, host_pid_of, ids_of, low_bits
from lab.recordings.tables import Columns, Table
from lab.stats.columns import per_distinct

# Values of NVTX_EVENTS.eventType.
_PUSH_POP, _START_END, _OLD_PUSH_POP, _OLD_START_END, _DOMAIN = 59, 60, 70, 71, 75
_SIZES = re.compile(r", sizes = (\[[\[\]\d, ]*\])")
_OPERATOR = re.compile(r"::|^(detach_?|record_param_comms)$|Backward\d*$")
_RANGES = among("eventType", (_PUSH_POP, _START_END, _OLD_PUSH_POP, _OLD_START_END))


def read_tables(export: Export, strings: StringIds) -> list[Table]:
    """Read ops, api, ranges, sync, osrt and nodes; their pid holds the machine's number, too."""
    return [
        read_operations(export, strings),
        _calls_of(export, strings, PREFIX + "RUNTIME", {"corr": "correlationId"}),
        read_ranges(export, strings),
        read_waits(export),
        # Calls of the operating system's libraries, where they were traced (`--trace=osrt`).
        _calls_of(export, strings, "OSRT_API", {}),
        read_graph_nodes(export),
    ]


def read_ranges(export: Export, strings: StringIds) -> Table:
    """Push/pop and start/end ranges, and which were `still_open` at the end."""
    schema = RANGE_COLUMNS | {"still_open": np.int8}
    if "NVTX_EVENTS" not in export.tables:
        return filled(schema)
    rows = export.integers(
        "NVTX_EVENTS",
        {
            "start_ns": "start",
            "end_ns": "end",
            "type": "eventType",
            "global_tid": "globalTid",
            "row": "rowid",
        },
        {"text_id": "textId", "domain_id": "domainId", "end_global_tid": "endGlobalTid"},
        _RANGES,
    )
    rows["still_open"] = rows["end_ns"] < 0
    _end_the_unfinished(export, rows)
    end_in_time(export, "NVTX_EVENTS", rows)
    rows |= ids_of(rows["global_tid"]) | {
        "kind": np.where(np.isin(rows["type"], (_PUSH_POP, _OLD_PUSH_POP)), PUSH_POP, START_END),
        "end_tid": low_bits(np.where(rows["end_global_tid"] > 0, rows["end_global_tid"], -1)),
        "text_id": _texts(export, strings, rows),
        "domain": _domains(export, strings, rows),
    }
    return filled(schema, rows)


def _end_the_unfinished(export: Export, rows: Columns) -> None:
    """A range that was open when recording ended lasts until the last time in the file, as in nsys."""
    still_open = rows["still_open"]
    if not still_open.any():
        return
    tables = [PREFIX + name for name in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET")]
    ends = [export.integers(table, {"end": "end"})["end"] for table in tables]
    end = max(int(times.max(initial=0)) for times in (rows["end_ns"], rows["start_ns"], *ends))
    rows["end_ns"] = np.where(still_open, end, rows["end_ns"])
    export.problems.append(f"{plural(int(still_open.sum()), 'range')} still open at the end of the recording")


def _texts(export: Export, strings: StringIds, rows: Columns) -> np.ndarray:
    """The range's own text where it has one, otherwise its entry in StringIds."""
    ids = strings.indices(rows["text_id"])
    if "text" in export.tables["NVTX_EVENTS"]:
        texts = export.rows("NVTX_EVENTS", ("rowid", "text"), _RANGES)
        own_texts = np.array(
            [(row, strings.id(str(text))) for row, text in texts if text is not None], dtype=np.int64
        )
        numbers, text_ids = own_texts.reshape(-1, 2).T
        ids[np.searchsorted(rows["row"], numbers)] = text_ids
    return ids


def _domains(export: Export, strings: StringIds, rows: Columns) -> np.ndarray:
    """Named domains by (process, domain id); 0 is the default one."""
    if not {"domainId", "text"} <= export.tables["NVTX_EVENTS"]:
        return np.full(len(rows["row"]), -1)
    columns = ("globalTid", "domainId", "text")
    # Domain ids repeat between processes.
    named = {
        (global_tid >> 24, domain): str(text)
        for global_tid, domain, text in export.rows("NVTX_EVENTS", columns, among("eventType", (_DOMAIN,)))
        if text is not None and global_tid is not None
    }

    def id_of(key: list[int]) -> int:
        process, domain = key
        return -1 if domain <= 0 else strings.id(named.get((process, domain), f"domain {domain}"))

    return per_distinct(np.stack([rows["global_tid"] >> 24, rows["domain_id"]], axis=1), id_of)


def never_closed(ranges: Table, texts: Sequence[str]) -> tuple[Lack, ...]:
    """Rule O: ranges that were pushed and never popped, though their like began later on their thread.

    Their like has the same name but for its numbers. A range that the end of the recording cuts off is usual;
    so is one around its like if others stand so, too (a recursion).
    """
    pushed = np.flatnonzero(ranges.kind == PUSH_POP)
    if not ranges.still_open[pushed].any():
        return ()
    names = {
        text: re.sub(r"\d+", "#", texts[text] if text >= 0 else "") for text in set(ranges.text_id.tolist())
    }
    ids = {name: index for index, name in enumerate(dict.fromkeys(names.values()))}
    key = np.array([ids[names[text]] for text in ranges.text_id[pushed].tolist()])
    columns = [getattr(ranges, name)[pushed] for name in ("process", "tid", "domain")]
    order = np.lexsort((ranges.start_ns[pushed], key, *columns))
    rows = pushed[order]
    like = np.all([column[order][1:] == column[order][:-1] for column in (key, *columns)], axis=0)
    opened = ranges.still_open[rows] > 0
    inside = like & (ranges.start_ns[rows[1:]] < ranges.end_ns[rows[:-1]])
    recursive = set(key[order][:-1][inside & ~opened[:-1]].tolist())
    lost = inside & opened[:-1] & ~np.isin(key[order][:-1], list(recursive))
    if not (n := int(lost.sum())):
        return ()
    lost_rows = rows[:-1][lost]
    name = texts[ranges.text_id[lost_rows[np.argmin(ranges.start_ns[lost_rows])]]]
    words = (
        f"were never closed, first {name!r}, though ranges of the same name follow on their thread: "
        "what ran later counts as theirs"
    )
    return (missing("ops", "hole", "O", n, len(pushed), "range", words),)


def with_bare_names(ranges: Table, strings: StringIds) -> Table:
    """The ranges with names without numbers and sizes; those of PyTorch's operators get the kind OP."""
    names, seqs = strings.stripped(ranges.text_id)
    texts = strings.texts

    def dims_of(text_id: int) -> int:
        match = _SIZES.search(texts[text_id]) if text_id >= 0 else None
        return strings.id(match[1].replace(" ", "")) if match else -1  # as Kineto's `Input Dims`

    library = np.array([*(_OPERATOR.search(text) is not None for text in texts), False])[names]
    # emit_nvtx numbers operators and a program's own ranges alike; only operators have a sequence number
    # or a name of PyTorch's.
    operator = (ranges.kind == PUSH_POP) & (names != ranges.text_id) & ((seqs >= 0) | library)
    columns = ranges.as_dict() | {
        "name_id": names,
        "seq": seqs,
        "kind": np.where(operator, OP, ranges.kind),
        "dims_id": per_distinct(ranges.text_id, dims_of),
    }
    return filled(RANGE_COLUMNS, columns)


_LATEST_NS = 1 << 62  # no clock counts further
# Column of `ops` -> column of the export. An absent optional column reads as -1.
_DEVICE_SIDE = {
    "start_ns": "start",
    "end_ns": "end",
    "device": "deviceId",
    "context": "contextId",
    "stream": "streamId",
    "corr": "correlationId",
    "global_pid": "globalPid",
}

_OPTIONAL = {"graph_node": "graphNodeId", "green_context": "greenContextId"}

_KERNEL = {
    "name_id": "demangledName",
    "short_id": "shortName",
    "grid_x": "gridX",
    "grid_y": "gridY",
    "grid_z": "gridZ",
    "block_x": "blockX",
    "block_y": "blockY",
    "block_z": "blockZ",
    "regs": "registersPerThread",
    "static_smem_bytes": "staticSharedMemory",
    "dynamic_smem_bytes": "dynamicSharedMemory",
}

_MEMCPY = {"bytes": "bytes", "copy_kind": "copyKind", "src_kind": "srcKind", "dst_kind": "dstKind"}
_MEMSET = {"bytes": "bytes", "src_kind": "memKind"}


def read_operations(export: Export, strings: StringIds) -> Table:
    """Kernels, copies, fills and graph replays."""
    parts = [
        _ops_of_kind(export, strings, PREFIX + name, kind, optional)
        for name, kind, optional in (
            ("KERNEL", KERNEL, _KERNEL),
            ("MEMCPY", MEMCPY, _MEMCPY),
            ("MEMSET", MEMSET, _MEMSET),
            ("GRAPH_TRACE", GRAPH, {}),
        )
    ]
    ops = filled(OPS_COLUMNS, *parts)
    if (ops.kind == GRAPH).any():
        export.problems.append(
            "graph replays were recorded as one row each, without their kernels: "
            "record with --cuda-graph-trace=node"
        )
    return ops


def _ops_of_kind(
    export: Export, strings: StringIds, table: str, kind: int, optional: dict[str, str]
) -> Table:
    rows = export.integers(table, _DEVICE_SIDE, _OPTIONAL | optional)
    end_in_time(export, table, rows)
    rows["pid"] = host_pid_of(rows["global_pid"])
    if kind == KERNEL:
        # Some kernels have a short name only.
        rows["name_id"] = strings.indices(np.where(rows["name_id"] < 0, rows["short_id"], rows["name_id"]))
    elif kind == MEMCPY:
        rows["name_id"] = per_distinct(
            rows["copy_kind"],
            lambda copy: strings.id(f"[CUDA memcpy {COPY_KINDS.get(copy, f'kind {copy}')}]"),
        )
    else:
        name = "[CUDA memset]" if kind == MEMSET else "[CUDA graph]"
        rows["name_id"] = np.full(len(rows["pid"]), strings.id(name))
    return filled(OPS_COLUMNS, rows | {"kind": np.full(len(rows["pid"]), kind)})


def end_in_time(export: Export, table: str, rows: dict[str, np.ndarray]) -> None:
    """End rows where they start if their end is missing, before the start or later than a clock counts; a
    problem counts them."""
    backward = (rows["end_ns"] < rows["start_ns"]) | (rows["end_ns"] > _LATEST_NS)
    if backward.any():
        export.problems.append(
            f"{table}: {plural(int(backward.sum()), 'row')} without a valid end, counted as 0 ns long"
        )
        rows["end_ns"] = np.where(backward, rows["start_ns"], rows["end_ns"])


def _calls_of(export: Export, strings: StringIds, table: str, needed: dict[str, str]) -> Table:
    needed = {"start_ns": "start", "end_ns": "end", "global_tid": "globalTid", **needed}
    rows = export.integers(table, needed, {"name_id": "nameId"})
    end_in_time(export, table, rows)
    rows |= ids_of(rows["global_tid"]) | {"name_id": strings.indices(rows["name_id"])}
    return filled(API_COLUMNS, rows)


def read_waits(export: Export) -> Table:
    rows = export.integers(PREFIX + "SYNCHRONIZATION", _DEVICE_SIDE)
    return filled(SYNC_COLUMNS, rows | {"pid": host_pid_of(rows["global_pid"])})


def read_graph_nodes(export: Export) -> Table:
    """When and where each node of a CUDA graph was made, or copied for an instantiated graph."""
    table = "CUDA_GRAPH_NODE_EVENTS"
    needed = {"start_ns": "start", "global_tid": "globalTid", "node": "graphNodeId"}
    if not set(needed.values()) <= export.tables.get(table, set()):
        return filled(NODE_COLUMNS)
    rows = export.integers(table, needed, {"original": "originalGraphNodeId"})
    return filled(NODE_COLUMNS, rows | ids_of(rows["global_tid"]))
