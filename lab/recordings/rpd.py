"""Reader of .rpd files: rocmProfileData's SQLite, schemas 2 and 3.

An operation and its call are linked by `rocpd_api_ops`; sizes, geometry and the stream stand beside the call
(`rocpd_kernelapi`, `rocpd_copyapi`), and only the call has a process. Schema 3 adds domains (among them the
operators of torch) and keeps arguments in `rocpd_ustring`. gpuId is the node's number, which counts CPUs too.
"""

from __future__ import annotations

import json
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
    OP,
    OPS_COLUMNS,
    PUSH_POP,
    RANGE_COLUMNS,
    SYNC_COLUMNS,
    Capture,
    Process,
    Strings,
    by_process,
    filled,
)
from lab.recordings.rocm import Parts, blocks, copy_columns, json_object, narrow
from lab.recordings.sqlite import Database, lookup
from lab.recordings.tables import NO_SYMBOL, Columns, Table
from lab.stats.columns import per_distinct

_MARKER = "UserMarker"
_CALLS = ("", "hip", "cuda", "rpd_tracer")  # "": schema 2, which has no domains
_OPERATORS = ("function", "backward_function")


def is_range(domain: str, name: str) -> bool:
    return name == _MARKER or domain not in _CALLS


def range_columns(database: Database, strings: Strings, texts: dict[int, str], rows: Columns) -> Columns:
    """text_id, name_id, kind, seq and dims_id (n,) of `rows`, columns of rocpd_api."""
    arguments = _arguments(database, rows["args"])

    def of_key(key: list[int]) -> tuple[int, int, int, int]:
        *named, argument = key
        return _columns_of(strings, [texts.get(text, "") for text in named], arguments.get(argument, ""))

    keys = np.stack([rows[name] for name in ("domain", "category", "name", "args")], axis=1)
    kind, text_id, seq, dims_id = per_distinct(keys, of_key, width=4).T
    name_id, seq_of_text = strings.stripped(text_id)
    return {
        "text_id": text_id.astype(np.int32),
        "name_id": name_id.astype(np.int32),
        "kind": kind.astype(np.int8),
        "seq": np.where(seq >= 0, seq, seq_of_text),
        "dims_id": dims_id.astype(np.int32),
    }


def _columns_of(strings: Strings, named: list[str], argument: str) -> tuple[int, int, int, int]:
    """(kind, text_id, seq, dims_id) of a row with this [domain, category, name] and argument."""
    domain, category, name = named
    if name == _MARKER:
        return PUSH_POP, strings.id(argument or name), -1, -1
    if domain != "torch":
        return PUSH_POP, strings.id(name), -1, -1
    details = json_object(argument if argument.startswith("{") else "")
    seq, sizes = details.get("seq"), details.get("sizes")
    dims = strings.id(json.dumps(sizes, separators=(",", ":"))) if isinstance(sizes, list) else -1
    number = seq if isinstance(seq, int) and 0 <= seq < 1 << 62 else -1
    return OP if category in _OPERATORS else PUSH_POP, strings.id(name), number, dims


def _arguments(database: Database, ids: np.ndarray) -> dict[int, str]:
    """Texts of arguments by id, of these rows only: calls' arguments may hold paths."""
    table = "rocpd_ustring" if "rocpd_ustring" in database.columns else "rocpd_string"
    used = set(ids.tolist())
    return database.texts(table, "id", "string", only=used) if used else {}


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
    """Read one file, with its write-ahead log if that lies beside it."""
    parts = Parts(Path(path))
    strings = parts.strings
    with sqlite.opened(parts.path) as connection:
        database = Database(connection, parts.path)
        parts.problems = database.problems
        metadata = _metadata(database)
        strides = Strides(_whole(metadata.get("gpu_stride")), _whole(metadata.get("pid_stride")))
        calls = _calls(database, parts)
        needed = {"id": "id", "device": "gpuId", "start": "start", "end": "end", "type": "opType_id"}
        rows = database.integers("rocpd_op", needed, {"text": "description_id"})
        # Names, types, domains and categories; arguments may be many, and may hold paths.
        columns = [rows["type"], rows["text"], calls["name"], calls["domain"], calls["category"]]
        used = set(np.unique(np.concatenate(columns)).tolist())
        texts = database.texts("rocpd_string", "id", "string", only=used)
        ops, waits = _operations(database, parts, texts, calls, strides, rows)
        api, ranges = _api(database, strings, texts, calls)
        ops, waits = _with_ordinals(database, strides, ops, waits)
    tables, processes = by_process([ops, api, ranges, waits])
    for name, table in zip(("ops", "api", "ranges", "sync"), tables, strict=True):
        parts.tables[name].append(table)
    parts.processes += [_local(process, strides) for process in processes]
    return parts.capture("rpd", metadata.get("schema_version"))


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
        table.with_columns(device=ordinal[np.searchsorted(used, table.device)]) for table in (ops, waits)
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
    gpus = [gpu for (gpu,) in rows]
    sound = all(isinstance(gpu, int) and 0 <= gpu < _MOST_GPUS for gpu in gpus)
    return sorted(gpus) if sound else []


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


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def _calls(database: Database, parts: Parts) -> Columns:
    needed = {name: name for name in ("id", "pid", "tid", "start", "end")} | {"name": "apiName_id"}
    optional = {"domain": "domain_id", "category": "category_id", "args": "args_id"}
    rows = database.integers("rocpd_api", needed, optional)
    return rows | parts.times("calls", rows)


def _operations(
    database: Database, parts: Parts, texts: dict[int, str], calls: Columns, strides: Strides, rows: Columns
) -> tuple[Table, Table]:
    """Kernels, copies and fills; and the barriers, which are waits. rows: columns of rocpd_op."""
    links = database.integers("rocpd_api_ops", {"op": "op_id", "api": "api_id"})
    call = lookup(links["op"], links["api"], rows["id"])
    device = np.where(strides.gpu > 0, rows["device"] % max(strides.gpu, 1), rows["device"])
    kinds, names = _kinds_and_names(database, parts.strings, texts, rows)
    launch = _launches(database, calls, texts, call)
    stream = np.maximum(launch.pop("stream"), _streams(database, "rocpd_copyapi", call))
    shared = parts.times("operations", rows) | {
        "device": narrow(device),
        "pid": lookup(calls["id"], calls["pid"], call),
        "corr": call,
        "stream": stream,
    }
    copy = database.integers("rocpd_copyapi", {"id": "api_ptr_id"}, {"size": "size"})
    of_copy = copy_columns(parts.strings.texts, names) | {"bytes": lookup(copy["id"], copy["size"], call)}
    columns = {
        **shared,
        **{name: np.where(kinds == KERNEL, column, -1) for name, column in launch.items()},
        **{name: np.where(kinds == MEMCPY, column, -1) for name, column in of_copy.items()},
        "bytes": np.where(kinds == KERNEL, -1, of_copy["bytes"]),
        "kind": kinds,
        "name_id": names,
    }
    ops = filled(OPS_COLUMNS, columns).where(kinds != _WAIT)
    return ops, filled(SYNC_COLUMNS, shared).where(kinds == _WAIT)


def _kinds_and_names(
    database: Database, strings: Strings, texts: dict[int, str], rows: Columns
) -> tuple[np.ndarray, np.ndarray]:
    """Kinds and string ids (n,): a kernel is named by its description, anything else by its type."""
    odd = set[str]()

    def of_pair(pair: list[int]) -> tuple[int, int]:
        label, text = (texts.get(text_id, "") for text_id in pair)
        kind = next((number for number, pattern in _KINDS if re.match(pattern, label)), None)
        if kind is None:
            odd.add(label)
        if kind == MEMCPY and text == "Fill":
            kind = MEMSET
        name = text if kind in (None, KERNEL) and text else label or "operation"
        nameless = kind == KERNEL and not text
        return KERNEL if kind is None else kind, strings.id(f"{name} {NO_SYMBOL}" if nameless else name)

    kinds, names = per_distinct(np.stack([rows["type"], rows["text"]], axis=1), of_pair, width=2).T
    if odd:
        database.problems.append(
            f"{plural(len(odd), 'type')} of operations that lab does not know, counted as kernels: "
            + ", ".join(repr(label[:40]) for label in sorted(odd)[:3])
        )
    return kinds, names


def _launches(database: Database, calls: Columns, texts: dict[int, str], call: np.ndarray) -> Columns:
    """Geometry and stream (n,) of the call of each operation; -1 where there is none."""
    sizes = {f"{size}_{axis}": f"{column}{axis.upper()}" for size, column in _SIZES for axis in "xyz"}
    rows = database.integers(
        "rocpd_kernelapi", {"id": "api_ptr_id"}, sizes | {"dynamic_smem_bytes": "groupSegmentSize"}
    )
    items = [text_id for text_id, text in texts.items() if _COUNTS_ITEMS.match(text)]
    counts_items = np.isin(lookup(calls["id"], calls["name"], rows["id"]), items)
    # A graph launch has one row without data, for all of its kernels.
    sized = (rows["block_x"] > 0) & (rows["grid_x"] > 0)
    columns = {name: narrow(rows[name]) for name in sizes}
    columns["dynamic_smem_bytes"] = rows["dynamic_smem_bytes"]
    for axis in "xyz":
        num_blocks = blocks(rows[f"grid_{axis}"], rows[f"block_{axis}"])
        columns[f"grid_{axis}"] = np.where(counts_items, num_blocks, columns[f"grid_{axis}"])
    per_call = {
        name: lookup(rows["id"], np.where(sized, column, -1), call) for name, column in columns.items()
    }
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
        number = int(text, 16) if len(text) <= 18 else -1
    except ValueError:
        return -1
    return number if 0 <= number < 1 << 62 else -1


def _api(database: Database, strings: Strings, texts: dict[int, str], calls: Columns) -> tuple[Table, Table]:
    """Calls of HIP and of the recorder itself; and ranges: markers, operators, what libraries noted."""

    def of_pair(pair: list[int]) -> tuple[int, bool]:
        domain, name = (texts.get(text_id, "") for text_id in pair)
        return strings.id(name), is_range(domain, name)

    pairs = np.stack([calls["domain"], calls["name"]], axis=1)
    names, marks = per_distinct(pairs, of_pair, width=2).T
    is_mark = marks > 0
    shared = {name: calls[name] for name in ("start_ns", "end_ns", "pid", "tid")}
    call = shared | {"corr": calls["id"], "name_id": names}
    api = filled(API_COLUMNS, call).where(~is_mark)
    rows = {name: column[is_mark] for name, column in calls.items()}
    ranges = filled(RANGE_COLUMNS, shared).where(is_mark)
    return api, ranges.with_columns(**range_columns(database, strings, texts, rows))
