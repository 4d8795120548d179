"""Answer one question, read from stdin, on stdout: `python -m lab.serve.sql.child`."""

from __future__ import annotations

import importlib.abc
import math
import resource
import sys
import threading
import time
from datetime import date, datetime
from pathlib import Path
from typing import Any

import msgspec

from lab.core.words import plural
from lab.errors import LabError
from lab.serve.index import Index
from lab.serve.rows import RunRow
from lab.serve.sql.ask import Answer, Question, infos, room_tables

ADDRESS_SPACE = 6 << 30  # bytes; thread pools and allocators reserve more than they use
ENDED = ("done", "failed", "analysis")
MOST_CELL = 10_000  # characters
MOST_ANSWER = 8 << 20  # characters of all cells
CLOSED = (
    "SET enable_external_access=false",
    "SET lock_configuration=true",
)


class _WithoutPandas(importlib.abc.MetaPathFinder):
    """pyarrow imports pandas, where it is there, for its first array: 0.3 s for what is not used here."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not used here", name="pandas")


def main() -> None:
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.meta_path.insert(0, _WithoutPandas())
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    began = time.perf_counter()
    try:
        reply = answer(question)
    except LabError as error:
        reply = Answer(error=error.problem)
    except MemoryError:
        reply = Answer(error="the question needs more memory than it may have", limited=True)
    reply.seconds = time.perf_counter() - began
    sys.stdout.buffer.write(msgspec.json.encode(reply))


def answer(question: Question) -> Answer:
    from lab.serve.sql.tables import index_tables, linked, named_in, read_tables

    index = Index(Path(question.root))
    rows = index.refresh()
    notes = [f"not looked at: {text}" for text in index.unseen]
    if not question.sql:
        return Answer(tables=infos(rows), notes=notes)
    files = room_tables(rows)
    wanted = named_in(question.sql, [*files, "runs", "steps", "findings", "figures"])
    notes += [
        *_broken(rows, wanted),
        *_without_findings(rows, wanted),
        *linked(index.root, rows, question.sql),
    ]
    tables = index_tables(rows, wanted) | read_tables(index, files, wanted, notes, question.sql)
    if gone := [name for name in wanted if name not in tables]:
        return Answer(error=f"no file of {', '.join(gone)} could be read", notes=notes, limited=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # from here on nothing can be written
    return asked(question, tables, notes)


def _broken(rows: list[RunRow], wanted: list[str]) -> list[str]:
    """Name runs that could not be read: only the table `runs` has them."""
    if not {*wanted} - {"runs"}:
        return []
    return [f"left out: {row.folder}: {row.error}" for row in rows if row.state == "unreadable"]


def _without_findings(rows: list[RunRow], wanted: list[str]) -> list[str]:
    """Name ended runs that are in neither `findings` nor `figures`."""
    silent = [row.folder for row in rows if not row.findings and row.state in ENDED]
    if not silent or not {"findings", "figures"} & {*wanted}:
        return []
    named = ", ".join(silent[:3]) + (", ..." if len(silent) > 3 else "")
    return [
        f"{len(silent)} of {plural(len(rows), 'run')} have no findings (not analysed, or by a lab "
        f"from before they were kept): {named}; lab analyze RUN writes them"
    ]


def asked(question: Question, tables: dict[str, Any], notes: list[str]) -> Answer:
    """Run the one SELECT over `tables`."""
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 2,
            "memory_limit": f"{question.memory_mb}MB",
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        },
    )
    for name, table in tables.items():
        connection.register(name, table)
    for statement in CLOSED:
        connection.execute(statement)
    try:
        if wrong := _refused(connection, question.sql):
            return Answer(error=wrong, notes=notes)
    except duckdb.Error as error:
        return Answer(error=_words(error), notes=notes)
    timer = threading.Timer(question.timeout_s, connection.interrupt)
    timer.start()
    try:
        cursor = connection.execute(question.sql)
        rows = cursor.fetchmany(question.most_rows + 1)
        described = cursor.description or []
    except duckdb.InterruptException:
        return Answer(error=f"stopped after {question.timeout_s:g} s", limited=True, notes=notes)
    except duckdb.OutOfMemoryException:
        return Answer(error=f"the query needs more than {question.memory_mb} MB", limited=True, notes=notes)
    except duckdb.Error as error:
        return Answer(error=_words(error), notes=notes)
    finally:
        timer.cancel()
    return _bounded(question, described, rows, notes)


def _refused(connection: Any, sql: str) -> str:
    """Why this text is not run; "" where it is one SELECT."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        return f"one SELECT, please: these are {len(statements)} statements"
    kind = statements[0].type.name
    return "" if kind == "SELECT" else f"only SELECT is answered, not {kind}: nothing here can be changed"


def _words(error: Exception) -> str:
    return str(error)[:2000]


def _bounded(question: Question, described: list[Any], rows: list[Any], notes: list[str]) -> Answer:
    cut = len(rows) > question.most_rows
    answered, characters = [], 0
    for row in rows[: question.most_rows]:
        cells = [cell(value) for value in row]
        characters += sum(len(cell) if isinstance(cell, str) else 8 for cell in cells)
        if characters > MOST_ANSWER:
            cut = True
            break
        answered.append(cells)
    return Answer(
        columns=[str(row[0]) for row in described],
        types=[str(row[1]) for row in described],
        rows=answered,
        cut=cut,
        notes=notes,
    )


def cell(value: Any) -> Any:
    """A value as JSON holds it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (datetime, date)):
        return value.isoformat(" ") if isinstance(value, datetime) else value.isoformat()
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= MOST_CELL else f"{text[:MOST_CELL]} … ({len(text):,} characters)"


if __name__ == "__main__":
    main()
