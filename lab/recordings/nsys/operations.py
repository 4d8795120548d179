"""GPU operations, API calls and waits of an export."""

from __future__ import annotations

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
    OPS_COLUMNS,
    SYNC_COLUMNS,
    filled,
)
from lab.recordings.nsys.export import PREFIX, Export, StringIds, host_pid_of, ids_of
from lab.recordings.tables import Schema, Table, joined
from lab.stats.columns import per_distinct

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
    """Kernels, copies, fills and graph replays; name_id is an id of StringIds, or below -1."""
    schema = OPS_COLUMNS | {"name_id": np.int64}
    parts = [
        _ops_of_kind(export, strings, PREFIX + name, kind, optional, schema)
        for name, kind, optional in (
            ("KERNEL", KERNEL, _KERNEL),
            ("MEMCPY", MEMCPY, _MEMCPY),
            ("MEMSET", MEMSET, _MEMSET),
            ("GRAPH_TRACE", GRAPH, {}),
        )
        if PREFIX + name in export.tables
    ]
    ops = joined(parts, schema)
    if (ops.kind == GRAPH).any():
        export.problems.append(
            "graph replays were recorded as one row each, without their kernels: "
            "record with --cuda-graph-trace=node"
        )
    return ops


def _ops_of_kind(
    export: Export, strings: StringIds, table: str, kind: int, optional: dict[str, str], schema: Schema
) -> Table:
    rows = export.numbers(table, _DEVICE_SIDE, _OPTIONAL | optional)
    end_in_time(export, table, rows)
    rows["pid"] = host_pid_of(rows["global_pid"])
    if kind == KERNEL:
        rows["name_id"] = strings.use(np.where(rows["name_id"] < 0, rows["short_id"], rows["name_id"]))
    elif kind == MEMCPY:
        rows["name_id"] = per_distinct(
            rows["copy_kind"],
            lambda copy: strings.add(f"[CUDA memcpy {COPY_KINDS.get(copy, f'kind {copy}')}]"),
        )
    else:
        name = "[CUDA memset]" if kind == MEMSET else "[CUDA graph]"
        rows["name_id"] = np.full(len(rows["pid"]), strings.add(name))
    return filled(schema, len(rows["pid"]), rows | {"kind": np.full(len(rows["pid"]), kind)})


def end_in_time(export: Export, table: str, rows: dict[str, np.ndarray]) -> None:
    """End rows where they start if their end is missing, before the start or later than a clock counts; a
    problem counts them."""
    backward = (rows["end_ns"] < rows["start_ns"]) | (rows["end_ns"] > _LATEST_NS)
    if backward.any():
        export.problems.append(
            f"{table}: {plural(int(backward.sum()), 'row')} without a valid end, counted as 0 ns long"
        )
        rows["end_ns"] = np.where(backward, rows["start_ns"], rows["end_ns"])


def read_api_calls(export: Export, strings: StringIds) -> Table:
    return _calls_of(export, strings, PREFIX + "RUNTIME", {"corr": "correlationId"})


def read_os_calls(export: Export, strings: StringIds) -> Table:
    """Calls of the operating system's libraries, where they were traced (`--trace=osrt`)."""
    return _calls_of(export, strings, "OSRT_API", {})


def _calls_of(export: Export, strings: StringIds, table: str, needed: dict[str, str]) -> Table:
    schema = API_COLUMNS | {"name_id": np.int64}
    if table not in export.tables:
        return filled(schema, 0, {})
    needed = {"start_ns": "start", "end_ns": "end", "global_tid": "globalTid", **needed}
    rows = export.numbers(table, needed, {"name_id": "nameId"})
    end_in_time(export, table, rows)
    rows |= ids_of(rows["global_tid"]) | {"name_id": strings.use(rows["name_id"])}
    return filled(schema, len(rows["pid"]), rows)


def read_waits(export: Export) -> Table:
    table = PREFIX + "SYNCHRONIZATION"
    if table not in export.tables:
        return filled(SYNC_COLUMNS, 0, {})
    rows = export.numbers(table, _DEVICE_SIDE)
    return filled(SYNC_COLUMNS, len(rows["corr"]), rows | {"pid": host_pid_of(rows["global_pid"])})


def read_graph_nodes(export: Export) -> Table:
    """When and where each node of a CUDA graph was made, or copied for an instantiated graph."""
    table = "CUDA_GRAPH_NODE_EVENTS"
    needed = {"start_ns": "start", "global_tid": "globalTid", "node": "graphNodeId"}
    if not set(needed.values()) <= export.tables.get(table, set()):
        return filled(NODE_COLUMNS, 0, {})
    rows = export.numbers(table, needed, {"original": "originalGraphNodeId"})
    return filled(NODE_COLUMNS, len(rows["node"]), rows | ids_of(rows["global_tid"]))
