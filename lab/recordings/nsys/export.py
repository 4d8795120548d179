"""An export: its tables, their columns as integer arrays, and what it says about itself."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.words import printable
from lab.errors import BadDataError
from lab.recordings.capture import Device, Strings
from lab.recordings.lacks import Axis, Lack, doubt
from lab.recordings.sqlite import Database, opened, quoted
from lab.stats.columns import per_distinct


class StringIds(Strings):
    """The texts in use by number; of the table StringIds none else is kept."""

    def __init__(self, export: Export) -> None:
        super().__init__()
        self._export = export

    def indices(self, ids: np.ndarray) -> np.ndarray:
        """The numbers (n,) of ids of StringIds (n,), -1 for one that it has no text of."""
        texts = self._export.texts("StringIds", "id", "value", only=set(ids.tolist()))
        return per_distinct(ids, lambda key: self.id(texts[key]) if key in texts else -1)


SCHEMA_MAJOR = 3  # of the exports that were read so far: 3.20.3, 3.24.14, 3.25.0

_NSYS_TABLES = ("StringIds", "META_DATA_EXPORT", "META_DATA_CAPTURE")
PREFIX = "CUPTI_ACTIVITY_KIND_"
PARQUET = ".parquet"


Row = tuple[Any, ...]


class Export(Database):
    """The tables and columns that an export has, and its columns as arrays; kind says what was opened."""

    def __init__(self, connection: sqlite3.Connection, path: Path, kind: str = "an SQLite file") -> None:
        super().__init__(connection, path)
        self.kind, self.tables = kind, self.columns

    def rows(self, table: str, columns: Sequence[str], condition: str = "") -> Iterable[Row]:
        """Rows of a table in its order, none where the table is absent; `rowid` counts them from 1."""
        if table not in self.tables:
            return iter(())
        chosen = ", ".join(map(quoted, columns))
        select = f"SELECT {chosen} FROM {quoted(table)} {condition} ORDER BY rowid"
        return self.connection.execute(select)

    def count(self, table: str) -> int:
        """Number of rows."""
        select = f"SELECT COUNT(*) FROM {quoted(table)}"
        return int(self.connection.execute(select).fetchone()[0])

    def check(self) -> None:
        if not any(name in self.tables for name in _NSYS_TABLES):
            raise BadDataError(
                f"{self.kind}, but not an nsys export: it has none of the tables " + ", ".join(_NSYS_TABLES),
                location=self.path,
                fix="nsys export --type sqlite FILE.nsys-rep",
            )
        schema = self.pairs("META_DATA_EXPORT").get("EXPORT_SCHEMA_VERSION", "")
        if schema and schema.split(".")[0] != str(SCHEMA_MAJOR):
            self.problems.append(
                f"export schema {schema}: lab has been tested with schemas {SCHEMA_MAJOR}.x only"
            )

    def pairs(self, table: str) -> dict[str, str]:
        """name -> value of a META_DATA table; the first value of a repeated name."""
        if not {"name", "value"} <= self.tables.get(table, set()):
            return {}
        rows = list(self.rows(table, ("name", "value")))
        return {str(name): str(value) for name, value in reversed(rows)}


def among(column: str, values: Sequence[int]) -> str:
    """The condition that a column has one of these values."""
    return f"WHERE {quoted(column)} IN ({', '.join(map(str, values))})"


def is_folder(names: Collection[str]) -> bool:
    """Whether a folder with these files is an export to Parquet, finished or not."""
    tables = {name.removesuffix(PARQUET) for name in names if name.endswith(PARQUET)}
    return any(name.startswith(PREFIX) for name in tables) or {"StringIds", "META_DATA_EXPORT"} <= tables


def check(path: Path | str) -> None:
    """Raise what `nsys.load` raises for a file that is not a readable export, without reading its rows."""
    with opened(Path(path)) as connection:
        Export(connection, Path(path)).check()


def host_pid_of(packed: np.ndarray) -> np.ndarray:
    """The process id (n,), above it the machine's number: pids repeat between machines; -1 if neither."""
    return np.where(packed < 0, -1, packed >> 24)


def ids_of(packed: np.ndarray) -> dict[str, np.ndarray]:
    """pid, with the machine's number, and tid (n,) of globalTid."""
    return {"pid": host_pid_of(packed), "tid": low_bits(packed)}


def low_bits(packed: np.ndarray) -> np.ndarray:
    """The thread (n,) of a globalTid, or the plain process id of a `host_pid_of`."""
    return np.where(packed < 0, -1, packed & 0xFFFFFF)


_CUDA = tuple(PREFIX + name for name in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET"))
_COUNTED: tuple[tuple[Axis, str, tuple[str, ...]], ...] = (
    ("gpu", "CUDA", _CUDA),
    ("ops", "NVTX", ("NVTX_EVENTS",)),
)


def read_devices(export: Export) -> tuple[Device, ...]:
    gpus = {row["id"]: row for row in _dicts(export, "TARGET_INFO_GPU") if "id" in row}
    on_process = [
        row for row in _dicts(export, "TARGET_INFO_CUDA_DEVICE") if {"gpuId", "cudaId", "pid"} <= row.keys()
    ]
    if not on_process:
        return tuple(_device(gpu, gpu.get("cuDevice", index), -1) for index, gpu in enumerate(gpus.values()))
    return tuple(
        _device(gpus[row["gpuId"]], row["cudaId"], row["pid"]) for row in on_process if row["gpuId"] in gpus
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


def _dicts(export: Export, table: str) -> list[dict[str, Any]]:
    columns = sorted(export.tables.get(table, ()))
    rows = export.rows(table, columns) if columns else []
    return [dict(zip(columns, row, strict=True)) for row in rows]


def read_info(export: Export) -> dict[str, str]:
    """How the capture was made; never the environment, the command or a user."""
    meta = export.pairs("META_DATA_CAPTURE")
    modes = {value for name, value in meta.items() if name.endswith("CUDA_GRAPH_TRACE_OPTIONS:MODE")}
    info = {"graph_mode": sorted(modes)[0]} if modes else {}
    for name, value in export.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")):
        if name == "NvDriverVersion" and value:
            info["driver"] = str(value)
    # Times count from the session's begin, which differs between the ranks of a job.
    starts = [start for (start,) in export.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)) if start]
    if len(starts) == 1:
        info["session_start_ns"] = str(starts[0])
    return info


# What nsys writes where it knows of a loss, whatever the row's severity: "Not all CUDA events might have been
# collected.", "CUDA profiling might have not been started correctly.", "Some CUPTI events might be missing."
_EVENTS = r"(?:events?|records?|activities|data)"
_LOSS = re.compile(
    rf"not all (?:\w+ )?{_EVENTS}"
    rf"|(?:might|may|could) (?:have )?not (?:have )?(?:been |be )?(?:start|collect|record|complete|fully)"
    r"|(?:might|may) be (?:missing|incomplete|lost)"
    rf"|{_EVENTS} (?:was|were|have been|has been|had been) (?:lost|dropped|discarded)"
    rf"|(?:lost|dropped|discarded) (?:\d+ )?(?:\w+ )?{_EVENTS}"
    r"|buffers? (?:is|are|was|were|became) (?:full|exhausted)",
    re.IGNORECASE,
)
_FAILURE = re.compile(r"(?:failed|unable|could not|cannot)\b", re.IGNORECASE)
# Of a machine whose GPUs are not peers; it concerns programs that allocate such memory (rule T).
UNIFIED = re.compile("unified memory cannot be traced", re.IGNORECASE)
_MANAGED = re.compile("cudaMallocManaged|cuMemAllocManaged")
_TRACED = re.compile(r"\b(?:CUDA|CUPTI|NVTX)\b", re.IGNORECASE)
# Samples of the CPU and of the operating system are in no table that lab adds up.
_ELSEWHERE = re.compile(
    r"\bCPU\b|sampl|ftrace|perf_event|OS runtime|context switch|Vulkan|OpenGL|DX1", re.IGNORECASE
)


def stated_lacks(export: Export) -> tuple[Lack, ...]:
    """Rule N: what nsys itself says about its events: their numbers, and those that it may have lost.

    Without the numbers the export was trimmed or is old, and nothing can be proven complete. Warnings and
    errors of nsys join the problems.
    """
    columns, texts = export.tables.get("DIAGNOSTIC_EVENT", frozenset[str]()), _texts(export)
    if {"text", "severity"} <= columns:
        warned = islice(export.rows("DIAGNOSTIC_EVENT", ("text",), among("severity", (2, 3))), 20)
        export.problems += [f"nsys: {printable(str(text))[:300]}" for (text,) in warned]
    lacks: list[Lack] = []
    for axis, domain, tables in _COUNTED:
        # Not `CUPTI events produced`, which is larger by nature: 3,045 for 2,965 rows of a complete export.
        pattern = re.compile(rf"Number of {domain} events collected: *\t?(\d{{1,18}})")
        expected = sum(int(number) for text in texts for number in pattern.findall(text))
        rows = sum(export.count(table) for table in tables if table in export.tables)
        text = f"nsys collected {expected} {domain} events, but this export has {rows}"
        if expected > rows:
            n = expected - rows
            lacks.append(Lack(axis, "hole", "N", -1, n, expected, n / expected, text))
        elif expected and expected < rows:
            export.problems.append(text)
    if not any("events collected" in text for text in texts):
        text = (
            "nsys' own counts of events (DIAGNOSTIC_EVENT) are not in this export (trimmed, or an old nsys)"
        )
        lacks.append(doubt("gpu", "N", text))
    if "StringIds" not in export.tables and (rows := _num_gpu_rows(export)):
        text = "the export has no StringIds: names of kernels, calls and ranges are unknown"
        lacks.append(Lack("ops", "all", "names", -1, rows, rows, 1.0, text))
    return (*lacks, *losses(texts))


def _texts(export: Export) -> list[str]:
    """Read nsys' own messages about the recording."""
    if "text" not in export.tables.get("DIAGNOSTIC_EVENT", set()):
        return []
    return [str(text) for (text,) in export.rows("DIAGNOSTIC_EVENT", ("text",))]


def untraced_lacks(export: Export, names: Sequence[str]) -> tuple[Lack, ...]:
    """Rule T: migrations of unified memory, where nsys could not trace them and a call allocated some."""
    is_untraced = any(UNIFIED.search(text) for text in _texts(export))
    if not is_untraced or not any(_MANAGED.match(name) for name in names):
        return ()
    text = "migrations of unified memory could not be traced on this machine"
    return (doubt("gpu", "T", text, untraced=True),)


def losses(texts: Sequence[str]) -> Iterator[Lack]:
    """The findings for what nsys says of a loss."""
    for text in dict.fromkeys(texts):
        subject = _TRACED.search(text)
        loss = _LOSS.search(text) or (subject and _FAILURE.search(text))
        if not loss or UNIFIED.search(text) or (_ELSEWHERE.search(text) and not subject):
            continue
        axis: Axis = "ops" if subject and subject[0].upper() == "NVTX" else "gpu"
        yield doubt(axis, "N", f"nsys says: {printable(text.strip())[:300]}")


def _num_gpu_rows(export: Export) -> int:
    """How many kernels, copies and calls the export has."""
    return sum(export.count(table) for table in _CUDA if table in export.tables)
