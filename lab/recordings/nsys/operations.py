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
from lab.recordings.nsys.export import PREFIX, Export, host_pid_of, tid_of
from lab.recordings.nsys.strings import StringIds
from lab.recordings.tables import Table, concat

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
    parts = []
    for name, kind, more in (
        ("KERNEL", KERNEL, _KERNEL),
        ("MEMCPY", MEMCPY, _MEMCPY),
        ("MEMSET", MEMSET, _MEMSET),
        ("GRAPH_TRACE", GRAPH, {}),
    ):
        if PREFIX + name in export.tables:
            parts.append(_ops_of_kind(export, strings, PREFIX + name, kind, more))
    if any((part["kind"] == GRAPH).any() for part in parts):
        export.problems.append(
            "graph replays were recorded as one row each, without their kernels: "
            "record with --cuda-graph-trace=node"
        )
    tables = [filled(OPS_COLUMNS | {"name_id": np.int64}, len(part["kind"]), part) for part in parts]
    schema = OPS_COLUMNS | {"name_id": np.int64}
    return concat([{name: getattr(table, name) for name in schema} for table in tables], schema)


def _ops_of_kind(
    export: Export, strings: StringIds, table: str, kind: int, more: dict[str, str]
) -> dict[str, np.ndarray]:
    optional = _OPTIONAL | more
    if kind == KERNEL:
        optional = optional | {"name_id": "demangledName", "short_id": "shortName"}
    found = with_valid_ends(export, table, export.numbers(table, _DEVICE_SIDE, optional))
    found["kind"] = np.full(len(found["start_ns"]), kind)
    found["pid"] = host_pid_of(found["global_pid"])
    if kind == KERNEL:
        found["name_id"] = strings.use(np.where(found["name_id"] < 0, found["short_id"], found["name_id"]))
    elif kind == MEMCPY:
        found["name_id"] = _copy_names(found["copy_kind"], strings)
    else:
        name = "[CUDA memset]" if kind == MEMSET else "[CUDA graph]"
        found["name_id"] = np.full(len(found["kind"]), strings.add(name))
    return found


def with_valid_ends(export: Export, table: str, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows with a duration of 0 where the end is missing, before the start or later than a clock counts;
    a problem counts them."""
    backward = (found["end_ns"] < found["start_ns"]) | (found["end_ns"] > _LATEST_NS)
    if backward.any():
        export.problems.append(
            f"{table}: {plural(int(backward.sum()), 'row')} without a valid end, counted as 0 ns long"
        )
        found["end_ns"] = np.where(backward, found["start_ns"], found["end_ns"])
    return found


def _copy_names(kinds: np.ndarray, strings: StringIds) -> np.ndarray:
    used, which = np.unique(kinds, return_inverse=True)
    names = [strings.add(f"[CUDA memcpy {COPY_KINDS.get(int(kind), f'kind {kind}')}]") for kind in used]
    return np.array(names, dtype=np.int64)[which] if len(used) else np.empty(0, dtype=np.int64)


def read_api_calls(export: Export, strings: StringIds) -> Table:
    return _calls_of(export, strings, PREFIX + "RUNTIME", {"corr": "correlationId"})


def read_os_calls(export: Export, strings: StringIds) -> Table:
    """Calls of the operating system's libraries, where they were traced (`--trace=osrt`)."""
    return _calls_of(export, strings, "OSRT_API", {})


def _calls_of(export: Export, strings: StringIds, table: str, more: dict[str, str]) -> Table:
    if table not in export.tables:
        return filled(API_COLUMNS | {"name_id": np.int64}, 0, {})
    found = export.numbers(
        table,
        {"start_ns": "start", "end_ns": "end", "at": "globalTid", **more},
        {"name_id": "nameId"},
    )
    with_valid_ends(export, table, found)
    found |= {
        "pid": host_pid_of(found["at"]),
        "tid": tid_of(found["at"]),
        "name_id": strings.use(found["name_id"]),
    }
    return filled(API_COLUMNS | {"name_id": np.int64}, len(found["at"]), found)


def read_waits(export: Export) -> Table:
    table = PREFIX + "SYNCHRONIZATION"
    if table not in export.tables:
        return filled(SYNC_COLUMNS, 0, {})
    found = export.numbers(table, _DEVICE_SIDE)
    return filled(SYNC_COLUMNS, len(found["corr"]), found | {"pid": host_pid_of(found["global_pid"])})


def read_graph_nodes(export: Export) -> Table:
    """When and where each node of a CUDA graph was made, or copied for an instantiated graph."""
    table = "CUDA_GRAPH_NODE_EVENTS"
    needed = {"start_ns": "start", "at": "globalTid", "node": "graphNodeId"}
    if not set(needed.values()) <= export.tables.get(table, set()):
        return filled(NODE_COLUMNS, 0, {})
    found = export.numbers(table, needed, {"original": "originalGraphNodeId"})
    found |= {"pid": host_pid_of(found["at"]), "tid": tid_of(found["at"])}
    return filled(NODE_COLUMNS, len(found["at"]), found)
