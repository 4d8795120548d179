"""From one file to a capture."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.core.words import plural
from lab.recordings import sqlite
from lab.recordings.capture import (
    API_COLUMNS,
    KERNEL,
    MEMCPY,
    MEMSET,
    OPS_COLUMNS,
    RANGE_COLUMNS,
    SYNC_COLUMNS,
    Capture,
    Process,
    Strings,
    by_process,
    filled,
)
from lab.recordings.rocm import blocks, copy_columns, narrow, sound_times
from lab.recordings.rpd.ranges import is_range, range_columns
from lab.recordings.sqlite import Database, lookup
from lab.recordings.tables import NO_SYMBOL, Table

_WAIT = 9  # not a kind of `ops`: a barrier waits, it does not work
_KINDS = (
    (KERNEL, "Kernel"),
    (MEMCPY, "Copy|Memcpy"),
    (MEMSET, "Fill|Memset"),
    (_WAIT, "Barrier|Marker|Wait"),
)
# Launches whose grid counts work items, where the others' counts blocks.
_COUNTS_ITEMS = re.compile(r"hip(Ext|Hcc)ModuleLaunchKernel")


@dataclass(frozen=True)
class Strides:
    """Files of several machines in one: gpuId = node * gpu + GPU, pid = node * pid + process."""

    gpu: int
    pid: int

    def node_of(self, pid: int) -> int:
        return pid // self.pid if self.pid > 0 else 0


def load(path: Path | str) -> Capture:
    """Read one file, with its write-ahead log if that lies beside it.

    Raises MissingError without the file; BadDataError if it is truncated, damaged or holds values of wrong
    types.
    """
    path = Path(path)
    strings = Strings()
    with sqlite.opened(path) as connection:
        database = Database(connection, path)
        metadata = _metadata(database)
        strides = Strides(_whole(metadata.get("gpu_stride")), _whole(metadata.get("pid_stride")))
        calls = _calls(database)
        texts = _texts(database, calls)
        ops, waits = _operations(database, strings, texts, calls, strides)
        api, ranges = _api(database, strings, texts, calls)
        ops, waits = _with_ordinals(database, strides, ops, waits)
        problems = database.problems
    (ops, api, ranges, waits), processes = by_process([ops, api, ranges, waits])
    return Capture(
        source=path,
        collector="rpd",
        version=None,
        schema=metadata.get("schema_version"),
        ops=ops,
        api=api,
        ranges=ranges,
        sync=waits,
        strings=strings.texts,
        devices=(),
        problems=problems,
        info={"vendor": "amd"},
        processes=tuple(_local(one, strides) for one in processes),
    )


def _with_ordinals(database: Database, strides: Strides, ops: Table, waits: Table) -> tuple[Table, Table]:
    """Devices by their ordinal. The node's gpuId counts CPUs before GPUs; where the GPUs that the file has
    sensors of are as many as those with work, the order of both is one."""
    used = np.unique(np.concatenate([ops.device, waits.device]))
    sensed = _sensed_gpus(database)
    if not len(used) or strides.gpu > 0 or len(sensed) != len(used):
        if len(used):
            database.problems.append(
                "devices are numbered by gpuId of their node, which counts CPUs before GPUs"
            )
        return ops, waits
    ordinal = np.array(sensed, dtype=np.int32)
    ops, waits = (
        Table({**table.as_dict(), "device": ordinal[np.searchsorted(used, table.device)]})
        for table in (ops, waits)
    )
    return ops, waits


_MOST_GPUS = 1024


def _sensed_gpus(database: Database) -> list[int]:
    """The ordinals of the GPUs whose clocks and power were recorded, in order; none for odd values."""
    if not {"deviceType", "deviceId"} <= database.columns.get("rocpd_monitor", frozenset()):
        return []
    rows = database.connection.execute(
        f"SELECT DISTINCT deviceId FROM rocpd_monitor WHERE deviceType = 'gpu' LIMIT {_MOST_GPUS + 1}"
    )
    found = [one for (one,) in rows]
    sound = all(isinstance(one, int) and 0 <= one < _MOST_GPUS for one in found)
    return sorted(found) if sound else []


def _local(process: Process, strides: Strides) -> Process:
    """The process with its own pid where the file numbers those of several machines."""
    if process.pid is None or not strides.node_of(process.pid):
        return process
    node = strides.node_of(process.pid)
    return replace(process, pid=process.pid % strides.pid, host=f"node {node}")


def _metadata(database: Database) -> dict[str, str]:
    """schema_version and the strides; nothing else is read."""
    if not {"tag", "value"} <= database.columns.get("rocpd_metadata", frozenset()):
        return {}
    rows = database.connection.execute(
        "SELECT tag, SUBSTR(value, 1, 20) FROM rocpd_metadata "
        "WHERE tag IN ('schema_version', 'gpu_stride', 'pid_stride')"
    )
    return {str(tag): str(value) for tag, value in rows}


def _texts(database: Database, calls: dict[str, np.ndarray]) -> dict[int, str]:
    """Names, types, domains and categories by id; arguments may be many, and may hold paths."""
    of_ops = database.integers("rocpd_op", {"type": "opType_id"}, {"text": "description_id"})
    columns = [*of_ops.values(), calls["name"], calls["domain"], calls["category"]]
    used = set(np.unique(np.concatenate(columns)).tolist())
    return database.texts("rocpd_string", "id", "string", only=used)


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def _calls(database: Database) -> dict[str, np.ndarray]:
    needed = {name: name for name in ("id", "pid", "tid", "start", "end")} | {"name": "apiName_id"}
    optional = {"domain": "domain_id", "category": "category_id", "args": "args_id"}
    found = database.integers("rocpd_api", needed, optional)
    times = sound_times(database.path, "calls", found["start"], found["end"], database.problems)
    return found | times


def _operations(
    database: Database,
    strings: Strings,
    texts: dict[int, str],
    calls: dict[str, np.ndarray],
    strides: Strides,
) -> tuple[Table, Table]:
    """Kernels, copies and fills; and the barriers, which are waits."""
    needed = {"id": "id", "device": "gpuId", "start": "start", "end": "end", "type": "opType_id"}
    found = database.integers("rocpd_op", needed, {"text": "description_id"})
    times = sound_times(database.path, "operations", found["start"], found["end"], database.problems)
    links = database.integers("rocpd_api_ops", {"op": "op_id", "api": "api_id"})
    call = lookup(links["op"], links["api"], found["id"])
    pid = lookup(calls["id"], calls["pid"], call)
    device = np.where(strides.gpu > 0, found["device"] % max(strides.gpu, 1), found["device"])
    kinds, names = _kinds_and_names(database, strings, texts, found)
    shared = times | {"device": narrow(device), "pid": pid, "corr": call}
    launch = _launches(database, calls, texts, call)
    copy = database.integers("rocpd_copyapi", {"id": "api_ptr_id"}, {"size": "size"})
    stream = np.maximum(launch["stream"], _streams(database, "rocpd_copyapi", call))
    of_kernel = kinds == KERNEL
    columns = (
        shared
        | {"kind": kinds, "name_id": names, "stream": stream}
        | {"bytes": np.where(of_kernel, -1, lookup(copy["id"], copy["size"], call))}
        | {name: np.where(of_kernel, column, -1) for name, column in launch.items() if name != "stream"}
    )
    for name, column in copy_columns(strings.texts, names).items():
        columns[name] = np.where(kinds == MEMCPY, column, -1)
    ops = filled(OPS_COLUMNS, len(kinds), columns).where(kinds != _WAIT)
    return ops, filled(SYNC_COLUMNS, len(kinds), shared | {"stream": stream}).where(kinds == _WAIT)


def _kinds_and_names(
    database: Database, strings: Strings, texts: dict[int, str], found: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Kinds and string ids (n,): a kernel is named by its description, anything else by its type."""
    both = np.stack([found["type"], found["text"]], axis=1)
    used, which = np.unique(both, axis=0, return_inverse=True)
    kinds, names, odd = [], [], set()
    for kind_id, text_id in used.tolist():
        kind, text = texts.get(kind_id, ""), texts.get(text_id, "")
        known = next((number for number, pattern in _KINDS if re.match(pattern, kind)), None)
        if known is None:
            odd.add(kind)
        if known == MEMCPY and text == "Fill":
            known = MEMSET
        nameless = known == KERNEL and not text
        known = KERNEL if known is None else known
        kinds.append(known)
        name = text if known == KERNEL and text else kind or "operation"
        names.append(strings.id(f"{name} {NO_SYMBOL}" if nameless else name))
    if odd:
        database.problems.append(
            f"{plural(len(odd), 'type')} of operations that lab does not know, counted as kernels: "
            + ", ".join(repr(one[:40]) for one in sorted(odd)[:3])
        )
    which = which.reshape(-1)
    return np.array(kinds, dtype=np.int8)[which], np.array(names, dtype=np.int32)[which]


def _launches(
    database: Database, calls: dict[str, np.ndarray], texts: dict[int, str], call: np.ndarray
) -> dict[str, np.ndarray]:
    """Geometry and stream (n,) of the call of each operation; -1 where there is none."""
    sizes = {f"{kind}_{axis}": f"{theirs}{axis.upper()}" for kind, theirs in _SIZES for axis in "xyz"}
    found = database.integers(
        "rocpd_kernelapi", {"id": "api_ptr_id"}, sizes | {"dynamic_smem_bytes": "groupSegmentSize"}
    )
    items = [one for one, text in texts.items() if _COUNTS_ITEMS.match(text)]
    counts_items = np.isin(lookup(calls["id"], calls["name"], found["id"]), items)
    # A graph launch has one row without data, for all of its kernels.
    sized = (found["block_x"] > 0) & (found["grid_x"] > 0)
    columns = {name: np.where(sized, narrow(found[name]), -1) for name in sizes}
    for axis in "xyz":
        whole = blocks(found[f"grid_{axis}"], found[f"block_{axis}"])
        columns[f"grid_{axis}"] = np.where(sized & counts_items, whole, columns[f"grid_{axis}"])
    columns["dynamic_smem_bytes"] = np.where(sized, found["dynamic_smem_bytes"], -1)
    per_call = {name: lookup(found["id"], column, call) for name, column in columns.items()}
    return per_call | {"stream": _streams(database, "rocpd_kernelapi", call)}


_SIZES = (("grid", "grid"), ("block", "workgroup"))


def _streams(database: Database, table: str, call: np.ndarray) -> np.ndarray:
    """The stream (n,) of each call: a pointer in hexadecimal text, 0 for the default one."""
    texts = database.texts(table, "api_ptr_id", "stream")
    ids = np.array(list(texts), dtype=np.int64)
    streams = np.array([_pointer(text) for text in texts.values()], dtype=np.int64)
    return lookup(ids, streams, call)


def _pointer(text: str) -> int:
    try:
        found = int(text, 16) if len(text) <= 18 else -1
    except ValueError:
        return -1
    return found if 0 <= found < 1 << 62 else -1


def _api(
    database: Database, strings: Strings, texts: dict[int, str], calls: dict[str, np.ndarray]
) -> tuple[Table, Table]:
    """Calls of HIP and of the recorder itself; and ranges: markers, operators, what libraries noted."""
    both = np.stack([calls["domain"], calls["name"]], axis=1)
    used, which = np.unique(both, axis=0, return_inverse=True)
    marks = [is_range(texts.get(domain, ""), texts.get(name, "")) for domain, name in used.tolist()]
    names = [strings.id(texts.get(name, "")) for _, name in used.tolist()]
    which = which.reshape(-1)
    is_mark = np.array(marks, dtype=bool)[which]
    shared = {name: calls[name] for name in ("start_ns", "end_ns", "pid", "tid")}
    size = len(which)
    call = shared | {"corr": calls["id"], "name_id": np.array(names, dtype=np.int32)[which]}
    api = filled(API_COLUMNS, size, call).where(~is_mark)
    rows = {name: column[is_mark] for name, column in calls.items()}
    ranges = filled(RANGE_COLUMNS, size, shared).where(is_mark)
    return api, Table(ranges.as_dict() | range_columns(database, strings, texts, rows))
