"""An export of two processes, made from one: the same rows again, later, by another process."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path


def twice(source: Path, target: Path, *, shift_ns: int, pids: int = 1) -> Path:
    """Write `target`: the rows of `source` (also gzipped), and again, `shift_ns` later, with pids + `pids`.

    Correlation ids, streams, devices and threads are equal: only the process differs.
    """
    content = source.read_bytes()
    target.write_bytes(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    with closing(sqlite3.connect(target)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in names:
            if table.startswith("CUPTI_ACTIVITY") or table in ("NVTX_EVENTS", "TARGET_INFO_CUDA_DEVICE"):
                _copy(connection, table, shift_ns, pids)
        connection.execute("DROP TABLE IF EXISTS DIAGNOSTIC_EVENT")
        connection.commit()
    return target


def _copy(connection: sqlite3.Connection, table: str, shift_ns: int, pids: int) -> None:
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    names = ", ".join(f'"{column}"' for column in columns)
    chosen = ", ".join(_of_the_copy(column, shift_ns, pids) for column in columns)
    connection.execute(f'INSERT INTO "{table}" ({names}) SELECT {chosen} FROM "{table}"')


def _of_the_copy(column: str, shift_ns: int, pids: int) -> str:
    if column in ("globalPid", "globalTid", "endGlobalTid"):
        return f'"{column}" + {pids << 24}'
    if column == "pid":
        return f'"{column}" + {pids}'
    return f'"{column}" + {shift_ns}' if column in ("start", "end") else f'"{column}"'
