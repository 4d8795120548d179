"""A copy of an nsys export without environment, command line, users, hosts, paths and program output.

A capture holds the profiled process's whole environment twice (META_DATA_CAPTURE and
TARGET_INFO_SYSTEM_ENV), the names of every process of the machine, what the program printed (through
StringIds), and more with every version. So rows and tables are kept by an allow-list, here, and whatever is
not on it goes: strings that no kept row uses, too, and the free pages of the file.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from lab.core.files import make_folder
from lab.errors import BadDataError, UsageError, writing
from lab.recordings.nsys.export import UNIFIED, check, losses
from lab.recordings.pieces import start_of
from lab.recordings.sqlite import quoted, unzipped

# Tables of times, sizes and ids: only numbers are kept, except the texts below.
EVENT_TABLES = re.compile(
    r"CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS|PROFILER_OVERHEAD|ENUM_\w+|CUDA_GRAPH\w*_EVENTS|CUDA_GPU_MEMORY_USAGE_EVENTS|OSRT_API|"
    r"CUDA_UM_[CG]PU_PAGE_FAULT_EVENTS|GPU_METRICS|TARGET_INFO_GPU_METRICS|"
    r"TARGET_INFO_(GPU|CUDA_DEVICE|CUDA_CONTEXT_INFO|CUDA_STREAM|SESSION_START_TIME)|ANALYSIS_DETAILS"
)
TEXTS = re.compile(
    r"NVTX_EVENTS\.text|ENUM_\w+\.(name|label)|TARGET_INFO_GPU\.(name|chipName)|TARGET_INFO_GPU_METRICS\.metricName"
)
# Of these tables, name and value of the rows with such a name.
KEPT_NAMES = {
    "META_DATA_EXPORT": r"EXPORT_(PRODUCT_\w+|SCHEMA_\w+|PLATFORM|ARCH|TIME_UTC)",
    "META_DATA_CAPTURE": r"(PROCESS_\d+:)?(COLLECT_\w+|CUDA_GRAPH_TRACE_OPTIONS:\w+|CUDA_FLUSH_\w+)|"
    r"CAPTURE_EVENT_TYPE|RUN_DURATION_MS|START_TRIGGER|STOP_TRIGGER",
    "TARGET_INFO_SYSTEM_ENV": r"NvDriverVersion|CudaDriverVersion|HardwarePlatform",
}
# Of DIAGNOSTIC_EVENT the counts, which tell whether an export is complete; no free text around them.
_COUNT = "[0-9]{1,19}"
KEPT_DIAGNOSTICS = (
    rf"Number of (NVTX|CUDA|CUPTI) events (collected|produced): *\t?{_COUNT}(, CUPTI buffers: {_COUNT})?\.?"
)
# What nsys said of a loss stays said, by the axis that it is about, in these words of its own.
LOSSES = {
    "gpu": "Not all CUDA events might have been collected.",
    "ops": "Not all NVTX events might have been collected.",
}
UNTRACED = "Unified Memory cannot be traced."
# Columns that point into StringIds.
STRING_IDS = {"demangledName", "shortName", "mangledName", "nameId", "textId"}


@dataclass(frozen=True)
class Scrubbed:
    """What was removed: rows (those of dropped tables included), entries of StringIds; sizes in bytes."""

    rows: int
    strings: int
    bytes_before: int
    bytes_after: int


def scrub(source: Path | str, target: Path | str) -> Scrubbed:
    """Write a copy of the export `source` (also gzipped) that holds only what is on the lists above.

    `target` appears whole or not at all, never gzipped. Raises UsageError if both are one file, what
    `lab.recordings.nsys.load` raises for a bad file, StorageError where the copy cannot be written.
    """
    source, target = Path(source), Path(target)
    if target.exists() and source.exists() and target.samefile(source):
        raise UsageError("source and target are the same file", location=source, fix="name another target")
    if source.is_file() and start_of(source, 2)[1]:
        with unzipped(source) as export:
            return _scrub(export, target)
    return _scrub(source, target)


def _scrub(source: Path, target: Path) -> Scrubbed:
    check(source)
    make_folder(target.parent)
    with writing(target), tempfile.TemporaryDirectory(dir=target.parent, prefix=".lab-scrub-") as folder:
        # Beside the target, because a rename is atomic within one file system only.
        copy = Path(folder) / "copy.sqlite"
        try:
            rows, strings = _copy(source, copy)
        except sqlite3.Error as error:
            if "full" in str(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from error
            if "I/O" in str(error):  # SQLite does not name the file; the source has just been read
                raise OSError(errno.EIO, f"{error}, or {source} cannot be read", str(target)) from error
            raise BadDataError(f"SQLite cannot copy it: {error}", location=source) from error
        os.replace(copy, target)
    return Scrubbed(rows, strings, source.stat().st_size, target.stat().st_size)


def _copy(source: Path, copy: Path) -> tuple[int, int]:
    """Copy row by row into a new file, which has no free pages; the rows and strings left out."""
    with closing(sqlite3.connect(f"file:{quote(str(copy.absolute()))}", uri=True)) as new:
        # Views and triggers of a foreign database are code.
        new.execute("PRAGMA trusted_schema = 0")
        new.create_function("fits", 2, _fits, deterministic=True)
        new.execute("ATTACH ? AS old", (f"file:{quote(str(source.absolute()))}?mode=ro",))
        tables = [name for (name,) in new.execute("SELECT name FROM old.sqlite_master WHERE type = 'table'")]
        left = sum(_copy_table(new, name) for name in tables if name != "StringIds")
        strings = _copy_strings(new) if "StringIds" in tables else 0
        new.commit()
        new.execute("DETACH old")
        new.execute("VACUUM")
    return left, strings


def _fits(pattern: str, text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(pattern, text) is not None


def _copy_table(new: sqlite3.Connection, name: str) -> int:
    """Copy what is allowed of one table; returns how many rows were left out."""
    table, columns = quoted(name), _columns(new, "old", name)
    (total,) = new.execute(f"SELECT COUNT(*) FROM old.{table}").fetchone()
    patterns: tuple[str, ...] = ()
    if name in KEPT_NAMES and {"name", "value"} <= set(columns):
        chosen = {"name": "name", "value": "value"}
        condition, patterns = "WHERE fits(?, name)", (KEPT_NAMES[name],)
    elif name == "DIAGNOSTIC_EVENT" and "text" in columns:
        chosen, condition, patterns = {"text": "text"}, "WHERE fits(?, text)", (KEPT_DIAGNOSTICS,)
    elif EVENT_TABLES.fullmatch(name):
        chosen, condition = {column: _harmless(name, column) for column in columns}, ""
    else:
        return int(total)
    new.execute(f"CREATE TABLE main.{table} ({', '.join(quoted(column) for column in columns)})")
    into, cells = ", ".join(map(quoted, chosen)), ", ".join(chosen.values())
    # The rowid is the id of a range in nsys' reports.
    new.execute(
        f"INSERT INTO main.{table} (rowid, {into}) SELECT rowid, {cells} FROM old.{table} {condition}",
        patterns,
    )
    (copied,) = new.execute(f"SELECT COUNT(*) FROM main.{table}").fetchone()
    if name == "DIAGNOSTIC_EVENT":
        texts = [str(text) for (text,) in new.execute(f"SELECT text FROM old.{table}")]
        kept_texts = [(LOSSES[axis],) for axis in sorted({lack.axis for lack in losses(texts)})]
        kept_texts += [(UNTRACED,)] * any(UNIFIED.search(text) for text in texts)
        new.executemany(f"INSERT INTO main.{table} (text) VALUES (?)", kept_texts)
    return int(total - copied)


def _harmless(table: str, column: str) -> str:
    """SQL for a column of an event table: numbers, and texts that are on the list."""
    name = quoted(column)
    if TEXTS.fullmatch(f"{table}.{column}"):
        return name
    return f"CASE WHEN typeof({name}) IN ('integer', 'real') THEN {name} END"


def _copy_strings(new: sqlite3.Connection) -> int:
    """Copy the entries of StringIds that a copied row points to; returns how many were left out."""
    tables = [name for (name,) in new.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")]
    used = [
        f"SELECT {quoted(column)} FROM main.{quoted(table)}"
        for table in tables
        for column in _columns(new, "main", table)
        if column in STRING_IDS
    ]
    new.execute("CREATE TABLE main.StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    if used:
        condition = f"WHERE id IN ({' UNION '.join(used)})"
        new.execute(f"INSERT INTO main.StringIds SELECT id, value FROM old.StringIds {condition}")
    (total,) = new.execute("SELECT COUNT(*) FROM old.StringIds").fetchone()
    (copied,) = new.execute("SELECT COUNT(*) FROM main.StringIds").fetchone()
    return int(total - copied)


def _columns(new: sqlite3.Connection, schema: str, table: str) -> list[str]:
    return [row[1] for row in new.execute(f"PRAGMA {schema}.table_info({quoted(table)})")]
