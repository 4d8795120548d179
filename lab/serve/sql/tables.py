"""Make the tables that SQL sees: runs, steps, findings and figures from the index, and each room's own."""

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

from lab.core.findings import Finding
from lab.errors import LabError
from lab.serve.index import TABLE_SUFFIXES, Index
from lab.serve.rows import RunRow, StepRow, TableFile, is_lower_bound
from lab.serve.sql.ask import COLUMNS, FINDINGS, RUNS, STEPS, table_name
from lab.serve.walk import opened

MOST_FILE_BYTES = 64 << 20
MOST_BYTES = 512 << 20  # of all files of one question
MOST_NOTES = 20
MOST_ENTRIES = 10_000  # of a folder of tables, looked at for links
MOST_DECODED = 1 << 30  # bytes of all tables of one question in memory
BATCH = 16_384  # rows of a Parquet file that are decoded at a time
TEXTS = ("sig_id", "sha256", "commit")  # hexadecimal: `123e4567` must stay text


TYPES = {
    **dict.fromkeys(("created_utc", "ended_utc", "started_utc"), pa.timestamp("ms")),
    **dict.fromkeys(("gpu_count", "steps_done", "steps_total", "attempts", "exit_code", "row"), pa.int64()),
    "peak_mem_bytes": pa.int64(),
    **dict.fromkeys(("seconds", "value"), pa.float64()),
    **dict.fromkeys(("dirty", "lower_bound"), pa.bool_()),
}
# Texts of a run that stay "" where there is none; all others are null then.
NEVER_NULL = ("run", "id", "room", "state", "integrity", "command")


def named_in(sql: str, names: Iterable[str]) -> list[str]:
    """The names that occur anywhere in a query: all that it uses, and at times one that it does not."""
    texts = set(re.findall(r"\w+", sql.lower()))
    return [name for name in names if name.lower() in texts]


def linked(root: Path, rows: Iterable[RunRow], sql: str) -> list[str]:
    """Name each file and folder behind the tables of a query that is a link: links are not followed."""
    notes = []
    for row in rows:
        folder = root / row.folder / "tables"
        if folder.is_symlink():
            left_out = ["tables"] if f"{table_name(row.room, '')}_" in sql.lower() else []
        else:
            left_out = [f"tables/{name}" for name in _links(folder) if _is_named(sql, row.room, name)]
        notes += [f"left out: {row.folder}/{name} is a link: put what it leads to there" for name in left_out]
    return notes[:MOST_NOTES] + ([f"and {len(notes) - MOST_NOTES} more"] if len(notes) > MOST_NOTES else [])


def _is_named(sql: str, room: str, file: str) -> bool:
    name, suffix = os.path.splitext(file)
    return suffix in TABLE_SUFFIXES and bool(named_in(sql, [table_name(room, name)]))


def _links(folder: Path) -> list[str]:
    """The names of the links among the first entries of a folder, as UTF-8."""
    try:
        with os.scandir(folder) as entries:
            names = [one.name for one in islice(entries, MOST_ENTRIES) if one.is_symlink()]
    except OSError:
        return []
    return sorted(name.encode("utf-8", "backslashreplace").decode() for name in names)


def index_tables(rows: list[RunRow], wanted: Iterable[str]) -> dict[str, pa.Table]:
    """The tables that the index itself answers."""
    makers: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "runs": lambda: [_run_cells(row) for row in rows],
        "steps": lambda: [_step_cells(row, step) for row in rows for step in row.steps],
        "findings": lambda: [_finding_cells(row, finding) for row in rows for finding in row.findings],
        "figures": lambda: [
            _finding_cells(row, figure) for row in rows for figure in row.findings if figure.kind == "figure"
        ],
    }
    return {name: _table(COLUMNS[name], makers[name]()) for name in wanted if name in makers}


def _table(names: Iterable[str], rows: list[dict[str, Any]]) -> pa.Table:
    types = {name: TYPES.get(name, pa.string()) for name in names}
    return pa.table({name: pa.array([row[name] for row in rows], type=kind) for name, kind in types.items()})


def _run_cells(row: RunRow) -> dict[str, Any]:
    cells = {name: getattr(row, name, None) for name in RUNS} | {
        "run": row.folder,
        "created_utc": utc_time(row.created_utc),
        "ended_utc": utc_time(row.ended_utc),
        "command": " ".join(row.command),
        "config": as_json(row.config),
        "versions": as_json(row.versions),
        "env": as_json(row.env),
    }
    return {name: None if value == "" and name not in NEVER_NULL else value for name, value in cells.items()}


def _step_cells(row: RunRow, step: StepRow) -> dict[str, Any]:
    return {name: getattr(step, name, None) for name in STEPS} | {
        "run": row.folder,
        "room": row.room,
        "step": step.name,
        "reason": step.reason or None,
        "started_utc": utc_time(step.started_utc),
        "labels": as_json(step.labels),
    }


def _finding_cells(row: RunRow, finding: Finding) -> dict[str, Any]:
    source = finding.evidence[0]
    return {name: getattr(finding, name, None) for name in FINDINGS} | {
        "run": row.folder,
        "room": row.room,
        "created_utc": utc_time(row.created_utc),
        "unit": finding.unit or None,
        "lower_bound": is_lower_bound(finding.title, finding.note),
        "note": finding.note or None,
        "file": source.file,
        "sha256": source.sha256,
        "row": source.row,
        "evidence": as_json(finding.evidence),
    }


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
    tables = {}
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
                lines = str(error).splitlines() or ["not enough memory to read it"]
                notes.append(f"left out: {row.folder}/{file.file}: {lines[0][:200]}")
                continue
            room -= table.nbytes
            parts.append(_with_run(_without_zones(table), row.folder))
        if parts:
            tables[name] = together(parts)
            notes += [
                f"{name}.{column} is text here, and sorts as text: not all files hold the same kind of number"
                for column in named_in(sql, _mixed_columns(parts, tables[name]))
            ]
    return tables


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
        data = stream.read(size_bytes)  # with its size: without, it would grow with the file
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
        while new.lower() in {"run", *(name.lower() for name in names)}:
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


def _mixed_columns(parts: list[pa.Table], table: pa.Table) -> list[str]:
    """Columns of numbers in some parts that are text in `table`, and so sort and compare as text."""
    numbers = {column.name.lower() for part in parts for column in part.schema if _is_number(column.type)}
    return [one.name for one in table.schema if one.name.lower() in numbers and pa.types.is_string(one.type)]


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
    kinds = {str(column.type): column.type for column in columns if not pa.types.is_null(column.type)}
    if len(kinds) <= 1:
        return next(iter(kinds.values()), pa.string())
    numbers = all(map(_is_number, kinds.values()))
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
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            plain = (
                table.column(index)
                .cast(pa.timestamp(column.type.unit, "UTC"))
                .cast(pa.timestamp(column.type.unit))
            )
            table = table.set_column(index, column.name, plain)
    return table


def utc_time(text: str) -> datetime | None:
    """A time of a manifest as UTC without a zone; None where it is not one."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.astimezone(timezone.utc).replace(tzinfo=None) if time.tzinfo else time


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
