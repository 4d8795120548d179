"""An export of `nsys export --type parquetdir`, a folder with one Parquet file per table."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from lab.errors import BadDataError, StorageError, needs
from lab.recordings.capture import Capture
from lab.recordings.nsys import capture_of
from lab.recordings.nsys.export import PARQUET, Export
from lab.recordings.sqlite import quoted

# What lab reads. Of other tables, which may be much larger (SCHED_EVENTS), only the columns are copied.
_READ = re.compile(
    r"CUPTI_|CUDA_|TARGET_INFO_|META_DATA_|(NVTX_EVENTS|OSRT_API|GPU_METRICS|DIAGNOSTIC_EVENT|StringIds)$"
)
_NO_ROOM = ("disk is full", "disk I/O error", "unable to open database file")  # Python 3.10 has no codes
# Nothing marks an export as finished, but a finished one has both.
_NEEDED = ("META_DATA_EXPORT", "StringIds")
MOST_ROWS = 1 << 28  # of one table: a small file can promise any number of equal rows
_BATCH_ROWS = 1 << 14
_FIX = "nsys export --type parquetdir --force-overwrite true FILE.nsys-rep"


def load_folder(path: Path | str) -> Capture:
    """Read an export of `--type parquetdir` through a temporary database, which holds the same tables."""
    path = Path(path)
    files = sorted(path.glob(f"*{PARQUET}"))
    tables = [file.name.removesuffix(PARQUET) for file in files]
    if missing := [name for name in _NEEDED if name not in tables]:
        raise BadDataError(
            f"an unfinished export: {' and '.join(missing)} missing from the folder",
            location=path,
            fix=_FIX,
        )
    with closing(sqlite3.connect("")) as connection:  # "": a temporary file, deleted when it is closed
        try:
            for file, table in zip(files, tables, strict=True):
                _copy(connection, file, table)
        except sqlite3.Error as error:
            if any(text in str(error) for text in _NO_ROOM):
                fix = "an export as SQLite needs no copy, or set SQLITE_TMPDIR to a folder with room"
                raise StorageError(f"no room for a copy of {path.name}: {error}", fix=fix) from error
            raise BadDataError(f"not what nsys exports: {error}", location=path, fix=_FIX) from error
        export = Export(connection, path, "a folder of Parquet files")
        # Nothing links an export to its report: only their ages show that it is out of date.
        report = path.with_name(path.name.removesuffix("_pqtdir") + ".nsys-rep")
        if report.exists() and report.stat().st_mtime > max(file.stat().st_mtime for file in files):
            export.problems.append(f"{report.name} is newer than this export of it: export it again")
        return capture_of(export)


def _copy(connection: sqlite3.Connection, path: Path, table: str) -> None:
    with needs("analysis"):
        import pyarrow.parquet
    try:
        file = pyarrow.parquet.ParquetFile(path)
        if file.metadata.num_rows > MOST_ROWS:
            raise BadDataError(
                f"{file.metadata.num_rows} rows: more than lab reads ({MOST_ROWS})", location=path
            )
        names = file.schema_arrow.names
        # Without types, so that every value keeps its own.
        connection.execute(f"CREATE TABLE {quoted(table)} ({', '.join(map(quoted, names))})")
        if not _READ.match(table):
            return
        insert = f"INSERT INTO {quoted(table)} VALUES ({', '.join('?' * len(names))})"
        for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
            connection.executemany(insert, _rows(batch))
    except (pyarrow.lib.ArrowException, OSError) as error:
        raise BadDataError(
            f"truncated, damaged or still being written: {str(error).splitlines()[0][:200]}",
            location=path,
            fix=_FIX,
        ) from error
    except OverflowError as error:
        raise BadDataError(f"{table} has values that are not integers: {error}", location=path) from error


def _rows(batch: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of a batch; a name with invalid UTF-8 must not make the whole recording unreadable."""
    import pyarrow

    columns = []
    for column in batch.columns:
        if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
            raw = column.cast(pyarrow.large_binary()).to_pylist()
            columns.append([None if cell is None else cell.decode("utf-8", "replace") for cell in raw])
        else:
            columns.append(column.to_pylist())
    return zip(*columns, strict=True)
