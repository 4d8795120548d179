"""Reader of Nsight Systems' SQLite exports (`nsys export --type sqlite`), of every schema seen so far.

Tables without rows are absent from an export and columns come and go between versions, so both are asked for first.
The file is opened read-only; strings that no event uses (the environment of the process, among others) are not read.
Times are ns on one clock for host and device. Ids pack the process: pid = globalTid >> 24 & 0xFFFFFF, and the lowest
24 bits are the thread.
"""

from __future__ import annotations

import gzip
import re
import shutil
import sqlite3
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import numpy as np

from lab.errors import BadDataError, LabError, MissingError, writing
from lab.recordings.capture import (
    API_COLUMNS,
    COPY_KINDS,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    OPS_COLUMNS,
    PUSH_POP,
    RANGE_COLUMNS,
    START_END,
    SYNC_COLUMNS,
    Capture,
    Device,
    Strings,
    filled,
)
from lab.recordings.tables import Table, concat

__all__ = [
    "MAGIC",
    "REPORT_SUFFIXES",
    "Capture",
    "check",
    "load",
    "load_report",
]

MAGIC = b"SQLite format 3\x00"
REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
SCHEMA_MAJOR = 3  # of the exports that were read so far: 3.20.3, 3.24.14, 3.25.0

_MARK, _PUSH_POP, _START_END, _OLD_PUSH_POP, _OLD_START_END, _DOMAIN = 34, 59, 60, 70, 71, 75
_KIND_OF = {_PUSH_POP: PUSH_POP, _OLD_PUSH_POP: PUSH_POP, _START_END: START_END, _OLD_START_END: START_END}
_PREFIX = "CUPTI_ACTIVITY_KIND_"
_OURS = ("StringIds", "META_DATA_EXPORT", "META_DATA_CAPTURE")

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


def load(path: Path | str) -> Capture:
    """Read an export.

    Raises MissingError without the file; BadDataError if it is empty, no SQLite file, cut, damaged, not an export of
    nsys, or of a schema whose columns lab does not know.
    """
    path = Path(path)
    with _opened(path) as connection:
        export = _Export(connection, path)
        export.check()
        _check_counts(export)
        words = _Words(export)
        ops = _ops(export, words)
        api = _api(export, words)
        ranges = _ranges(export, words)
        meta = export.pairs("META_DATA_EXPORT")
        capture = Capture(
            source=path,
            collector="nsys",
            version=meta.get("EXPORT_PRODUCT_VERSION"),
            schema=meta.get("EXPORT_SCHEMA_VERSION"),
            ops=words.named(ops, ("name_id",)),
            api=words.named(api, ("name_id",)),
            ranges=_stripped(words.named(ranges, ("text_id", "domain")), words),
            sync=_sync(export),
            strings=words.strings.texts,
            devices=_devices(export),
            problems=export.problems,
            info=_info(export),
        )
    _check_presence(capture)
    return capture


def load_report(path: Path | str) -> Capture:
    """Read a .nsys-rep through `nsys export`; the exported file, with its secrets, is deleted at once.

    Raises MissingError where nsys is not on PATH; BadDataError where the export fails.
    """
    path = Path(path)
    nsys = shutil.which("nsys")
    if nsys is None:
        raise MissingError(
            "a .nsys-rep can be read by nsys only, and nsys is not on PATH",
            where=path,
            fix="where nsys is: nsys export --type sqlite FILE.nsys-rep, then give lab the .sqlite file",
        )
    with tempfile.TemporaryDirectory(prefix="lab-nsys-") as folder:
        target = Path(folder) / "export.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(target)]
        done = subprocess.run([*command, str(path.absolute())], capture_output=True, text=True, check=False)
        if done.returncode or not target.exists():
            said = (done.stderr or done.stdout).strip().splitlines()
            raise BadDataError(
                f"nsys export failed ({done.returncode}): {said[-1] if said else 'no output'}", where=path
            )
        capture = load(target)
    return replace(capture, source=path)


def load_zipped(path: Path | str) -> Capture:
    """Read a gzipped export; it is unpacked into a temporary file, since SQLite jumps about in it.

    Raises BadDataError where the gzip is cut or damaged, what `load` raises for what is in it, StorageError where it
    cannot be unpacked.
    """
    with unzipped(Path(path)) as export:
        capture = load(export)
    return replace(capture, source=Path(path))


@contextmanager
def unzipped(path: Path) -> Iterator[Path]:
    """The export in a gzip file, as a temporary file for as long as the block lasts; errors in it name `path`."""
    with tempfile.TemporaryDirectory(prefix="lab-nsys-") as folder:
        target = Path(folder) / "export.sqlite"
        with writing(target), target.open("wb") as file:
            _unzip(path, file)
        try:
            yield target
        except LabError as error:
            if not (error.where or str(target)).startswith(str(target)):
                raise
            raise type(error)(error.what, where=path, fix=error.fix) from error


def _unzip(path: Path, into: BinaryIO) -> None:
    try:
        with gzip.open(path) as file:
            shutil.copyfileobj(file, into, 1 << 20)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadDataError(f"the gzip file is cut or damaged: {error}", where=path) from error


def check(path: Path | str) -> None:
    """Raise what `load` raises for a file that is no readable export, without reading its rows."""
    with _opened(Path(path)) as connection:
        _Export(connection, Path(path)).check()


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection; every error of SQLite becomes one that names the file."""
    _check_size(path)
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as connection:
            # A name that is no UTF-8 must not cost the whole recording.
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
            connection.execute("PRAGMA query_only = 1")
            connection.execute("PRAGMA trusted_schema = 0")
            yield connection
    except sqlite3.Error as error:
        raise BadDataError(f"SQLite cannot read it: {error}", where=path, fix="export it again") from error


def _check_size(path: Path) -> None:
    """SQLite reads the pages that are there and notices a missing one late: the header tells at once."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError as error:
        raise MissingError("no such file", where=path) from error
    except OSError as error:
        raise MissingError(f"cannot be read: {error.strerror}", where=path) from error
    if not header:
        raise BadDataError("the file is empty (0 bytes)", where=path, fix="export it again")
    if not header.startswith(MAGIC):
        raise BadDataError("not an SQLite file", where=path, fix="nsys export --type sqlite FILE.nsys-rep")
    page = int.from_bytes(header[16:18], "big")
    promised = int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)
    if len(header) < 100 or path.stat().st_size < promised:
        raise BadDataError(
            f"the file is cut: {path.stat().st_size} of {promised} bytes are there",
            where=path,
            fix="copy or export it again",
        )


class _Export:
    """The tables and columns that this file has, and columns as integer arrays."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection, self.path, self.problems = connection, path, list[str]()
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {name: self._columns(name) for (name,) in names if isinstance(name, str)}

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self.connection.execute(f"PRAGMA table_info({quoted(table)})")}

    def check(self) -> None:
        if not any(name in self.tables for name in _OURS):
            raise BadDataError(
                "an SQLite file, but no export of nsys: it has none of the tables " + ", ".join(_OURS),
                where=self.path,
                fix="nsys export --type sqlite FILE.nsys-rep",
            )
        schema = self.pairs("META_DATA_EXPORT").get("EXPORT_SCHEMA_VERSION", "")
        if schema and schema.split(".")[0] != str(SCHEMA_MAJOR):
            self.problems.append(f"schema {schema}: lab was tried on schemas {SCHEMA_MAJOR}.x only")

    def pairs(self, table: str) -> dict[str, str]:
        """name -> value of a META_DATA table; of names that repeat the first."""
        if not {"name", "value"} <= self.tables.get(table, set()):
            return {}
        rows = self.connection.execute(f"SELECT name, value FROM {quoted(table)}").fetchall()
        return {str(name): str(value) for name, value in reversed(rows)}

    def rows(self, table: str, columns: str, condition: str = "") -> list[tuple[Any, ...]]:
        """Rows of a table, none where the table is absent."""
        if table not in self.tables:
            return []
        return self.connection.execute(f"SELECT {columns} FROM {quoted(table)} {condition}").fetchall()

    def numbers(
        self,
        table: str,
        needed: Mapping[str, str],
        optional: Mapping[str, str] | None = None,
        where: str = "",
    ) -> dict[str, np.ndarray]:
        """Columns of integers in the order of rowid; NULL and absent optional ones read as -1.

        Raises BadDataError where a needed column is absent or a value is no integer.
        """
        there = self.tables[table]
        absent = sorted(set(needed.values()) - there - {"rowid"})
        if absent:
            raise BadDataError(
                f"{table} has no column {', '.join(absent)}: an export of a version that lab does not know",
                where=self.path,
            )
        wanted = dict(needed) | {k: v for k, v in (optional or {}).items() if v in there}
        selected = ", ".join(f"IFNULL({quoted(name)}, -1)" for name in wanted.values())
        cursor = self.connection.execute(f"SELECT {selected} FROM {quoted(table)} {where} ORDER BY rowid")
        try:
            # From the cursor straight into the array: no list of rows, whatever the size of the export.
            flat = np.fromiter(chain.from_iterable(cursor), dtype=np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadDataError(
                f"{table} holds something else than integers: {error}", where=self.path
            ) from error
        values = flat.reshape(-1, len(wanted))
        found = {name: np.ascontiguousarray(values[:, i]) for i, name in enumerate(wanted)}
        missing = {name: np.full(len(values), -1) for name in (optional or {}) if name not in found}
        return found | missing


def quoted(name: str) -> str:
    """A name for SQL, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


class _Words:
    """Ids of the export's StringIds, turned into places in one list that holds what is used and no more."""

    def __init__(self, export: _Export) -> None:
        self.strings = Strings()
        self._export = export
        self._used: list[np.ndarray] = []

    def use(self, ids: np.ndarray) -> np.ndarray:
        """Note that these ids of StringIds are used; returns them."""
        self._used.append(np.unique(ids))
        return ids

    def own(self, text: str) -> int:
        """An id below -1 for a text that is not in StringIds."""
        return -2 - self.strings.id(text)

    def named(self, table: Table, columns: tuple[str, ...]) -> Table:
        """The table with places in `strings` instead of ids of StringIds."""
        known, places = self._places()
        fixed = {}
        for name in columns:
            ids = getattr(table, name)
            at = np.minimum(np.searchsorted(known, ids), max(len(known) - 1, 0))
            found = places[at] if len(known) else np.full(len(ids), -1)
            hit = (known[at] == ids) if len(known) else np.zeros(len(ids), dtype=bool)
            fixed[name] = np.where(ids < -1, -2 - ids, np.where(hit, found, -1)).astype(np.int32)
        return Table({name: fixed.get(name, getattr(table, name)) for name in table})

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        used = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *self._used]))
        wanted = set(used[used >= 0].tolist())
        self._used = [used]
        if not hasattr(self, "_found"):
            self._found: dict[int, int] = {}
        missing = wanted - self._found.keys()
        if missing and {"id", "value"} <= self._export.tables.get("StringIds", set()):
            for index, value in self._export.connection.execute("SELECT id, value FROM StringIds"):
                if index in missing:
                    self._found[index] = self.strings.id(str(value))
        known = np.array(sorted(self._found), dtype=np.int64)
        return known, np.array([self._found[index] for index in known.tolist()], dtype=np.int64)


def _pid(packed: np.ndarray) -> np.ndarray:
    return np.where(packed < 0, -1, packed >> 24 & 0xFFFFFF)


def _tid(packed: np.ndarray) -> np.ndarray:
    return np.where(packed < 0, -1, packed & 0xFFFFFF)


def _ops(export: _Export, words: _Words) -> Table:
    """Kernels, copies, fills and graph replays; name_id as ids of StringIds, or below -1."""
    parts = []
    for name, kind, more in (
        ("KERNEL", KERNEL, _KERNEL),
        ("MEMCPY", MEMCPY, _MEMCPY),
        ("MEMSET", MEMSET, _MEMSET),
        ("GRAPH_TRACE", GRAPH, {}),
    ):
        if _PREFIX + name in export.tables:
            parts.append(_ops_of_kind(export, words, _PREFIX + name, kind, more))
    if any((part["kind"] == GRAPH).any() for part in parts):
        export.problems.append(
            "graph replays were recorded as one row each, without their kernels: record with --cuda-graph-trace=node"
        )
    tables = [filled(OPS_COLUMNS | {"name_id": np.int64}, len(part["kind"]), part) for part in parts]
    schema = OPS_COLUMNS | {"name_id": np.int64}
    return concat([{name: getattr(table, name) for name in schema} for table in tables], schema)


def _ops_of_kind(
    export: _Export, words: _Words, table: str, kind: int, more: dict[str, str]
) -> dict[str, np.ndarray]:
    optional = _OPTIONAL | more
    if kind == KERNEL:
        optional = optional | {"name_id": "demangledName", "short_id": "shortName"}
    found = _in_order(export, table, export.numbers(table, _DEVICE_SIDE, optional))
    found["kind"] = np.full(len(found["start_ns"]), kind)
    found["pid"] = _pid(found["global_pid"])
    _complain_of_shared_pids(export, found["global_pid"])
    if kind == KERNEL:
        found["name_id"] = words.use(np.where(found["name_id"] < 0, found["short_id"], found["name_id"]))
    elif kind == MEMCPY:
        found["name_id"] = _copy_names(found["copy_kind"], words)
    else:
        name = "[CUDA memset]" if kind == MEMSET else "[CUDA graph]"
        found["name_id"] = np.full(len(found["kind"]), words.own(name))
    return found


def _in_order(export: _Export, table: str, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows that end before they start, or have no end, last no time at all; how many is said."""
    backward = found["end_ns"] < found["start_ns"]
    if backward.any():
        export.problems.append(
            f"{table}: {backward.sum()} rows have no end after their start and count as 0 long"
        )
        found["end_ns"] = np.maximum(found["start_ns"], found["end_ns"])
    return found


def _copy_names(kinds: np.ndarray, words: _Words) -> np.ndarray:
    used, which = np.unique(kinds, return_inverse=True)
    names = [words.own(f"[CUDA memcpy {COPY_KINDS.get(int(kind), f'kind {kind}')}]") for kind in used]
    return np.array(names, dtype=np.int64)[which] if len(used) else np.empty(0, dtype=np.int64)


def _complain_of_shared_pids(export: _Export, global_pids: np.ndarray) -> None:
    used = np.unique(global_pids[global_pids >= 0])
    if len(np.unique(_pid(used))) < len(used):
        export.problems.append(
            "processes of several machines share a pid; their rows were taken for one process's"
        )


def _api(export: _Export, words: _Words) -> Table:
    table = _PREFIX + "RUNTIME"
    if table not in export.tables:
        return filled(API_COLUMNS | {"name_id": np.int64}, 0, {})
    found = export.numbers(
        table,
        {"start_ns": "start", "end_ns": "end", "at": "globalTid", "corr": "correlationId"},
        {"name_id": "nameId"},
    )
    _in_order(export, table, found)
    found |= {"pid": _pid(found["at"]), "tid": _tid(found["at"]), "name_id": words.use(found["name_id"])}
    return filled(API_COLUMNS | {"name_id": np.int64}, len(found["at"]), found)


def _sync(export: _Export) -> Table:
    table = _PREFIX + "SYNCHRONIZATION"
    if table not in export.tables:
        return filled(SYNC_COLUMNS, 0, {})
    found = export.numbers(table, _DEVICE_SIDE)
    return filled(SYNC_COLUMNS, len(found["corr"]), found | {"pid": _pid(found["global_pid"])})


def _ranges(export: _Export, words: _Words) -> Table:
    """Push/pop and start/end ranges; text_id and domain as ids of StringIds, or below -1."""
    schema = RANGE_COLUMNS | {"text_id": np.int64, "domain": np.int64}
    if "NVTX_EVENTS" not in export.tables:
        return filled(schema, 0, {})
    found = export.numbers(
        "NVTX_EVENTS",
        {"start_ns": "start", "end_ns": "end", "type": "eventType", "at": "globalTid", "row": "rowid"},
        {"text_id": "textId", "domain_id": "domainId", "end_at": "endGlobalTid"},
        f"WHERE eventType IN ({', '.join(map(str, _KIND_OF))})",
    )
    _end_the_unfinished(export, found)
    _in_order(export, "NVTX_EVENTS", found)
    found["kind"] = np.where(np.isin(found["type"], (_PUSH_POP, _OLD_PUSH_POP)), PUSH_POP, START_END)
    found |= {
        "pid": _pid(found["at"]),
        "tid": _tid(found["at"]),
        "end_tid": _tid(np.where(found["end_at"] > 0, found["end_at"], -1)),
    }
    found["text_id"] = _texts(export, words, found)
    found["domain"] = _domains(export, words, found)
    return filled(schema, len(found["at"]), found)


def _end_the_unfinished(export: _Export, found: dict[str, np.ndarray]) -> None:
    """A range that was open when recording ended lasts until the last time in the file, as nsys takes it."""
    still_open = found["end_ns"] < 0
    if not still_open.any():
        return
    tables = [_PREFIX + name for name in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET")]
    last = [export.rows(table, "MAX(end)")[0][0] or 0 for table in tables if table in export.tables]
    end = max([int(found["end_ns"].max()), int(found["start_ns"].max()), *last])
    found["end_ns"] = np.where(still_open, end, found["end_ns"])
    export.problems.append(f"{still_open.sum()} ranges were still open at the end of the recording")


def _texts(export: _Export, words: _Words, found: dict[str, np.ndarray]) -> np.ndarray:
    """The range's own text where it has one, else its entry in StringIds."""
    ids = found["text_id"].copy()
    if "text" in export.tables["NVTX_EVENTS"]:
        condition = (
            f"WHERE text IS NOT NULL AND eventType IN ({', '.join(map(str, _KIND_OF))}) ORDER BY rowid"
        )
        cursor = export.connection.execute(f"SELECT rowid, text FROM NVTX_EVENTS {condition}")
        known: dict[object, int] = {}
        rows, own = [], []
        for row, text in cursor:
            if (place := known.get(text)) is None:
                place = known[text] = words.own(str(text))
            rows.append(row)
            own.append(place)
        ids[np.searchsorted(found["row"], np.array(rows, dtype=np.int64))] = np.array(own, dtype=np.int64)
    return words.use(ids)


def _domains(export: _Export, words: _Words, found: dict[str, np.ndarray]) -> np.ndarray:
    """Named domains by (process, domain id); 0 is the default one."""
    if not {"domainId", "text"} <= export.tables["NVTX_EVENTS"]:
        return np.full(len(found["at"]), -1)
    named = {
        (at >> 24, domain): str(text)
        for at, domain, text in export.rows(
            "NVTX_EVENTS", "globalTid, domainId, text", f"WHERE eventType = {_DOMAIN}"
        )
        if text is not None and at is not None
    }
    keys = np.stack([found["at"] >> 24, found["domain_id"]], axis=1)
    used, which = np.unique(keys, axis=0, return_inverse=True)
    ids = [
        -1 if domain <= 0 else words.own(named.get((process, domain), f"domain {domain}"))
        for process, domain in used.tolist()
    ]
    return np.array(ids, dtype=np.int64)[which.ravel()] if len(used) else np.empty(0, dtype=np.int64)


def _stripped(ranges: Table, words: _Words) -> Table:
    names, seqs = words.strings.stripped(ranges.text_id)
    columns = {name: getattr(ranges, name) for name in ranges} | {"name_id": names, "seq": seqs}
    return filled(RANGE_COLUMNS, len(ranges), columns)


def _devices(export: _Export) -> tuple[Device, ...]:
    gpus = {row["id"]: row for row in _dicts(export, "TARGET_INFO_GPU") if "id" in row}
    places = [
        row for row in _dicts(export, "TARGET_INFO_CUDA_DEVICE") if {"gpuId", "cudaId", "pid"} <= row.keys()
    ]
    if not places:
        return tuple(_device(gpu, gpu.get("cuDevice", index), -1) for index, gpu in enumerate(gpus.values()))
    return tuple(
        _device(gpus[one["gpuId"]], one["cudaId"], one["pid"]) for one in places if one["gpuId"] in gpus
    )


def _device(gpu: dict[str, Any], device: int, pid: int) -> Device:
    compute = (gpu.get("computeMajor"), gpu.get("computeMinor"))
    return Device(
        device=device,
        name=str(gpu.get("name", "")),
        pid=pid,
        memory_bytes=gpu.get("totalMemory"),
        bandwidth_bytes_per_s=gpu.get("memoryBandwidth"),
        clock_hz=gpu.get("clockRate"),
        num_sms=gpu.get("smCount"),
        compute=None if None in compute else compute,  # type: ignore[arg-type]
    )


def _dicts(export: _Export, table: str) -> list[dict[str, Any]]:
    columns = sorted(export.tables.get(table, ()))
    rows = export.rows(table, ", ".join(map(quoted, columns))) if columns else []
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _info(export: _Export) -> dict[str, str]:
    """What the capture says of how it was made; never the environment, the command or a user."""
    meta = export.pairs("META_DATA_CAPTURE")
    modes = {value for name, value in meta.items() if name.endswith("CUDA_GRAPH_TRACE_OPTIONS:MODE")}
    info = {"graph_mode": sorted(modes)[0]} if modes else {}
    for name, value in export.rows("TARGET_INFO_SYSTEM_ENV", "name, value"):
        if name == "NvDriverVersion" and value:
            info["driver"] = str(value)
    return info


def _check_counts(export: _Export) -> None:
    """Hold the rows against the numbers of events that nsys itself wrote down, where it did."""
    said = " ".join(str(text) for (text,) in export.rows("DIAGNOSTIC_EVENT", "text"))
    cuda = [_PREFIX + name for name in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET")]
    for what, tables in (("NVTX", ["NVTX_EVENTS"]), ("CUDA", cuda)):
        told = sum(map(int, re.findall(rf"Number of {what} events collected: *\t?(\d+)", said)))
        there = sum(export.rows(table, "COUNT(*)")[0][0] for table in tables if table in export.tables)
        if told and told != there:
            export.problems.append(f"nsys collected {told} {what} events, this export holds {there}")


def _check_presence(capture: Capture) -> None:
    if not capture.kernels.any():
        capture.problems.append("no kernels were recorded")
    if not len(capture.ranges):
        capture.problems.append("no NVTX ranges were recorded")
