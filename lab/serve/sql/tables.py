"""The tables that SQL sees: runs, steps, findings and figures from the index, and each room's own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa

from lab.errors import LabError
from lab.serve.confine import opened
from lab.serve.index import TABLE_SUFFIXES, Index
from lab.serve.rows import RunRow, TableFile, is_least
from lab.serve.sql.answer import TableInfo

MOST_FILE_BYTES = 64 << 20
MOST_BYTES = 512 << 20  # of all files of one question
MOST_NOTES = 20
MOST_ENTRIES = 10_000  # of a folder of tables, looked at for links
MOST_DECODED = 1 << 30  # bytes of all tables of one question in memory
BATCH = 16_384  # rows of a Parquet file that are decoded at a time
TEXTS = ("sig_id", "sha256", "commit")  # hexadecimal: `123e4567` is no number
_WORD = re.compile(r"[^a-z0-9]+")

TIME = pa.timestamp("ms")
RUNS: dict[str, tuple[Any, Callable[[RunRow], Any]]] = {
    "run": (pa.string(), lambda row: row.folder),
    "id": (pa.string(), lambda row: row.id),
    "room": (pa.string(), lambda row: row.room),
    "state": (pa.string(), lambda row: row.state),
    "verdict": (pa.string(), lambda row: row.verdict or None),
    "lead": (pa.string(), lambda row: row.lead or None),
    "integrity": (pa.string(), lambda row: row.integrity),
    "error": (pa.string(), lambda row: row.error or None),
    "kind": (pa.string(), lambda row: row.kind or None),
    "created_utc": (TIME, lambda row: when(row.created_utc)),
    "ended_utc": (TIME, lambda row: when(row.ended_utc)),
    "model": (pa.string(), lambda row: row.model or None),
    "host": (pa.string(), lambda row: row.host or None),
    "gpus": (pa.string(), lambda row: row.gpus or None),
    "gpu_count": (pa.int64(), lambda row: row.gpu_count),
    "driver": (pa.string(), lambda row: row.driver or None),
    "engine": (pa.string(), lambda row: row.engine or None),
    "image": (pa.string(), lambda row: row.image or None),
    "image_id": (pa.string(), lambda row: row.image_id or None),
    "lab": (pa.string(), lambda row: row.lab or None),
    "commit": (pa.string(), lambda row: row.commit or None),
    "dirty": (pa.bool_(), lambda row: row.dirty),
    "steps_done": (pa.int64(), lambda row: row.steps_done),
    "steps_total": (pa.int64(), lambda row: row.steps_total),
    "command": (pa.string(), lambda row: " ".join(row.command)),
    "config": (pa.string(), lambda row: as_json(row.config)),
    "versions": (pa.string(), lambda row: as_json(row.versions)),
    "env": (pa.string(), lambda row: as_json(row.env)),
}
STEPS: dict[str, tuple[Any, Callable[[tuple[RunRow, Any]], Any]]] = {
    "run": (pa.string(), lambda one: one[0].folder),
    "room": (pa.string(), lambda one: one[0].room),
    "step": (pa.string(), lambda one: one[1].name),
    "status": (pa.string(), lambda one: one[1].status),
    "reason": (pa.string(), lambda one: one[1].reason or None),
    "seconds": (pa.float64(), lambda one: one[1].seconds),
    "attempts": (pa.int64(), lambda one: one[1].attempts),
    "started_utc": (TIME, lambda one: when(one[1].started_utc)),
    "exit_code": (pa.int64(), lambda one: one[1].exit_code),
    "peak_mem_bytes": (pa.int64(), lambda one: one[1].peak_mem_bytes),
    "labels": (pa.string(), lambda one: as_json(one[1].labels)),
    "folder": (pa.string(), lambda one: one[1].folder),
}
FINDINGS: dict[str, tuple[Any, Callable[[tuple[RunRow, Any]], Any]]] = {
    "run": (pa.string(), lambda one: one[0].folder),
    "room": (pa.string(), lambda one: one[0].room),
    "created_utc": (TIME, lambda one: when(one[0].created_utc)),
    "id": (pa.string(), lambda one: one[1].id),
    "kind": (pa.string(), lambda one: one[1].kind),
    "severity": (pa.string(), lambda one: one[1].severity),
    "title": (pa.string(), lambda one: one[1].title),
    "text": (pa.string(), lambda one: one[1].text),
    "value": (pa.float64(), lambda one: one[1].value),
    "unit": (pa.string(), lambda one: one[1].unit or None),
    "lower_bound": (pa.bool_(), lambda one: is_least(one[1].title, one[1].note)),
    "note": (pa.string(), lambda one: one[1].note or None),
    "file": (pa.string(), lambda one: one[1].evidence[0].file),
    "sha256": (pa.string(), lambda one: one[1].evidence[0].sha256),
    "row": (pa.int64(), lambda one: one[1].evidence[0].row),
    "evidence": (pa.string(), lambda one: as_json(one[1].evidence)),
}
WHAT = {
    "runs": "one row per run: outcome, verdict, hardware, versions, configuration (JSON)",
    "steps": "one row per step of every run",
    "findings": "one row per sentence of a verdict and per key figure, with its evidence",
    "figures": "the key figures among the findings",
}


def table_name(room: str, table: str) -> str:
    """`sweep_configs`: what SQL calls tables/configs.csv of the room sweep."""
    return _WORD.sub("_", f"{room}_{table}".lower()).strip("_") or "_"


def room_tables(rows: Iterable[RunRow]) -> dict[str, list[tuple[RunRow, TableFile]]]:
    """The files behind each room's tables, by the name that SQL has for them."""
    found: dict[str, list[tuple[RunRow, TableFile]]] = {}
    for row in rows:
        for file in row.tables:
            found.setdefault(table_name(row.room, file.name), []).append((row, file))
    return {name: files for name, files in sorted(found.items()) if name not in WHAT}


def infos(rows: list[RunRow]) -> list[TableInfo]:
    columns: dict[str, Iterable[str]] = {
        "runs": RUNS,
        "steps": STEPS,
        "findings": FINDINGS,
        "figures": FINDINGS,
    }
    own = [TableInfo(name=name, what=WHAT[name], columns=tuple(columns[name])) for name in WHAT]
    rooms = [
        TableInfo(name=name, what=f"{files[0][1].file} of the room {files[0][0].room}", files=len(files))
        for name, files in room_tables(rows).items()
    ]
    return own + rooms


def named_in(sql: str, names: Iterable[str]) -> list[str]:
    """The names that occur in a query as words: more than it uses at most, never fewer."""
    words = set(re.findall(r"\w+", sql.lower()))
    return [name for name in names if name.lower() in words]


def linked(root: Path, rows: Iterable[RunRow], sql: str) -> list[str]:
    """A note for each file behind the tables of a query that is left out because it is a link, and for each
    folder of a room's tables that is one: links lead out of the runs, and are not followed."""
    found = []
    for row in rows:
        folder = root / row.folder / "tables"
        if folder.is_symlink():
            left_out = ["tables"] if f"{table_name(row.room, '')}_" in sql.lower() else []
        else:
            left_out = [f"tables/{name}" for name in _links(folder) if _is_named(sql, row.room, name)]
        found += [f"left out: {row.folder}/{name} is a link: put what it leads to there" for name in left_out]
    return found[:MOST_NOTES] + ([f"and {len(found) - MOST_NOTES} more"] if len(found) > MOST_NOTES else [])


def _is_named(sql: str, room: str, file: str) -> bool:
    name, suffix = os.path.splitext(file)
    return suffix in TABLE_SUFFIXES and bool(named_in(sql, [table_name(room, name)]))


def _links(folder: Path) -> list[str]:
    """The names of the links among the first entries of a folder, as text that any answer can hold."""
    try:
        with os.scandir(folder) as entries:
            names = [one.name for one in islice(entries, MOST_ENTRIES) if one.is_symlink()]
    except OSError:
        return []
    return sorted(name.encode("utf-8", "backslashreplace").decode() for name in names)


def own_tables(rows: list[RunRow], wanted: Iterable[str]) -> dict[str, pa.Table]:
    made: dict[str, Callable[[], pa.Table]] = {
        "runs": lambda: _made(RUNS, rows),
        "steps": lambda: _made(STEPS, [(row, step) for row in rows for step in row.steps]),
        "findings": lambda: _made(FINDINGS, [(row, one) for row in rows for one in row.findings]),
        "figures": lambda: _made(
            FINDINGS, [(row, one) for row in rows for one in row.findings if one.kind == "figure"]
        ),
    }
    return {name: made[name]() for name in wanted if name in made}


def _made(columns: dict[str, tuple[Any, Callable[[Any], Any]]], items: list[Any]) -> pa.Table:
    return pa.table(
        {name: pa.array([of(item) for item in items], type=kind) for name, (kind, of) in columns.items()}
    )


def read_tables(
    index: Index,
    files: dict[str, list[tuple[RunRow, TableFile]]],
    wanted: Iterable[str],
    notes: list[str],
    sql: str = "",
) -> dict[str, pa.Table]:
    """The rooms' tables with a column `run` in front.

    A file that cannot be read, and a column of `sql` whose types do not agree, are sentences in `notes`.
    """
    left, room = MOST_BYTES, MOST_DECODED
    found = {}
    for name in wanted:
        parts = []
        for row, file in files.get(name, []):
            left -= file.size_bytes
            if file.size_bytes > MOST_FILE_BYTES or left < 0:
                notes.append(
                    f"left out: {row.folder}/{file.file} has {file.size_bytes:,} bytes, too many to read"
                )
                continue
            try:
                table = read_table(index.path(row), file.file, room)
            except (LabError, pa.ArrowException, OSError, MemoryError) as error:
                words = str(error).splitlines() or ["not enough memory to read it"]
                notes.append(f"left out: {row.folder}/{file.file}: {words[0][:200]}")
                continue
            room -= table.nbytes
            parts.append(_with_run(_without_zones(table), row.folder))
        if parts:
            found[name] = together(parts)
            notes += [
                f"{name}.{column} is text here, and sorts as text: not all files hold the same kind of number"
                for column in named_in(sql, _mixed_columns(parts, found[name]))
            ]
    return found


def read_table(folder: Path, file: str, room: int = MOST_DECODED) -> pa.Table:
    """One CSV or Parquet file of a run, of at most `room` bytes in memory.

    Raises MissingError, or pyarrow's error for a file that is damaged or larger than that.
    """
    with opened(folder, file) as stream:
        if file.endswith(".parquet"):
            return _parquet(stream, room)
        import pyarrow.csv

        size_bytes = os.fstat(stream.fileno()).st_size
        _check(size_bytes, MOST_FILE_BYTES)  # it may have grown since it was seen
        data = stream.read(size_bytes)  # reserves what it is told
    if not data.strip():
        return pa.table({})
    table = pyarrow.csv.read_csv(
        pa.BufferReader(data),
        read_options=pyarrow.csv.ReadOptions(use_threads=False),
        convert_options=pyarrow.csv.ConvertOptions(
            null_values=[""],  # `nan` is a number, not a gap
            column_types=dict.fromkeys(TEXTS, pa.string()),
        ),
    )
    _check(table.nbytes, room)
    return table


def _parquet(stream: BinaryIO, room: int) -> pa.Table:
    """Batch by batch: a few bytes of a Parquet file can stand for any number of rows."""
    import pyarrow.parquet

    parquet = pyarrow.parquet.ParquetFile(stream)
    _check(parquet.metadata.num_rows, room)
    batches, decoded = [], 0
    for batch in parquet.iter_batches(batch_size=BATCH, use_threads=False):
        decoded += batch.nbytes
        _check(decoded, room)
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=parquet.schema_arrow)


def _check(decoded: int, room: int) -> None:
    if decoded > room:
        raise pa.ArrowInvalid(f"takes more than {room / (1 << 20):,.0f} MiB in memory")


def _with_run(table: pa.Table, run: str) -> pa.Table:
    """With `run` first; a column of that name, and repeated names, get a number."""
    names: list[str] = []
    for name in table.column_names:
        new, number = name, 2
        while new.lower() in {"run", *(one.lower() for one in names)}:
            new, number = f"{name}_{number}", number + 1
        names.append(new)
    return table.rename_columns(names).add_column(0, "run", pa.array([run] * len(table), type=pa.string()))


def together(parts: list[pa.Table]) -> pa.Table:
    """Tables as one: missing columns are null; several types make a number if all are, else text.

    Names that differ in case alone are one column, as they are in SQL.
    """
    parts = _one_spelling(parts)
    if all(part.schema.equals(parts[0].schema) for part in parts):
        return pa.concat_tables(parts)
    wanted = {name: _common(columns) for name, columns in _by_name(parts).items()}
    return pa.concat_tables([_cast(part, wanted) for part in parts])


def _mixed_columns(parts: list[pa.Table], whole: pa.Table) -> list[str]:
    """Columns of numbers in some tables that are text in `whole`, and so sort and compare as text."""
    numbers = {column.name.lower() for part in parts for column in part.schema if _is_number(column.type)}
    return [one.name for one in whole.schema if one.name.lower() in numbers and pa.types.is_string(one.type)]


def _one_spelling(parts: list[pa.Table]) -> list[pa.Table]:
    spelt: dict[str, str] = {}
    return [
        part.rename_columns([spelt.setdefault(name.lower(), name) for name in part.column_names])
        for part in parts
    ]


def _by_name(parts: list[pa.Table]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for part in parts:
        for name in part.column_names:
            columns.setdefault(name, []).append(part.column(name))
    return columns


def _common(columns: list[Any]) -> Any:
    known = {str(one.type): one.type for one in columns if not pa.types.is_null(one.type)}
    if len(known) <= 1:
        return next(iter(known.values()), pa.string())
    numbers = all(map(_is_number, known.values()))
    return pa.float64() if numbers and all(map(_is_exact, columns)) else pa.string()


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_exact(column: Any) -> bool:
    """Whether a column of numbers keeps all its digits as float64: times in ns do not."""
    try:
        column.cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _cast(part: pa.Table, wanted: dict[str, Any]) -> pa.Table:
    columns = {}
    for name, kind in wanted.items():
        if name in part.column_names:
            columns[name] = part.column(name).cast(kind)
        else:
            columns[name] = pa.nulls(len(part), kind)
    return pa.table(columns)


def _without_zones(table: pa.Table) -> pa.Table:
    """Times with a zone as UTC without one, like the times in `runs`: DuckDB needs a package for zones."""
    for at, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            plain = (
                table.column(at)
                .cast(pa.timestamp(column.type.unit, "UTC"))
                .cast(pa.timestamp(column.type.unit))
            )
            table = table.set_column(at, column.name, plain)
    return table


def when(text: str) -> datetime | None:
    """A time of a manifest as UTC without a zone; None where it is not one."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.astimezone(timezone.utc).replace(tzinfo=None) if found.tzinfo else found


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
