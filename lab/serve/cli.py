"""`lab serve` and `lab query`: the commands over all runs below a folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.terminal.options import PATH, Finite, as_json, option

if TYPE_CHECKING:
    from lab.serve.sql.ask import Answer

FOLDER = click.argument("folder", type=PATH, default=Path("experiments"), required=False)


@click.command("serve")
@FOLDER
@click.option("--port", type=click.IntRange(0, 65535), help="Default: the first free one from 8000 on.")
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
@click.option("--uds", type=PATH, metavar="PATH", help="Listen on a Unix socket that only you can open.")
@option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on; with any but this one others can reach it, without encryption.",
)
def serve(folder: Path, port: int | None, open_browser: bool, uds: Path | None, host: str) -> None:
    """All runs below FOLDER (default: experiments) as pages: list, compare, timelines, questions.

    Prints an address with a token that works once. Nothing can be started, changed or deleted from the pages.
    On a login node use --uds: other users can reach a port, but not that socket.
    """
    from lab.errors import needs

    with needs("serve"):
        from lab.serve.web.server import serve as run

    run(
        folder,
        port=port,
        host=host,
        uds=uds,
        open_browser=open_browser,
        say=lambda text: click.echo(text, err=not text.startswith("http")),
    )


@click.command("mcp")
@FOLDER
def mcp(folder: Path) -> None:
    """Read-only tools over the runs below FOLDER for an assistant: list, findings, query, diff.

    Speaks the Model Context Protocol on stdin and stdout; nothing listens on the network.
    """
    from lab.errors import MissingError, needs

    if not folder.is_dir():
        raise MissingError("no such folder", location=folder, fix="name the folder that holds the runs")
    with needs("mcp"):
        import mcp.server  # noqa: F401

    from lab.serve.tools import server

    server(folder).run("stdio")


@click.command("export")
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@click.option(
    "--to",
    "form",
    required=True,
    type=click.Choice(["perfetto", "xlsx", "parquet"]),
    help="perfetto: timelines, for its viewer or Chrome's; xlsx, parquet: tables.",
)
@option("-o", "--out", type=PATH, default=Path("exports"), help="Folder for the files.")
def export(runs: tuple[Path, ...], form: str, out: Path) -> None:
    """Write RUNs, or recordings, in the formats of other tools: one file per step with all its ranks.

    Exit code 1 where something could not be read or is not in the export; each such thing is named.
    """
    from lab.core.words import listed, printable
    from lab.errors import StepFailed, needs

    with needs("analysis"):
        from lab.serve.export import MISSING, export_run, with_place

    missing: list[str] = []
    for run in runs:
        written, notes = export_run(run, form, out)
        for text in (printable(with_place(note, run.name)) for note in notes):
            if text.startswith(MISSING):
                missing.append(text)
            else:
                click.echo(f"note: {text}", err=True)
        for path in written:
            click.echo(printable(str(path)))
    if missing:
        raise StepFailed(listed("the export is not complete", missing, limit=40), location=out)


@click.command("query")
@click.argument("sql", required=False, default="")
@FOLDER
@as_json("The answer")
@click.option("--csv", "as_csv", is_flag=True, help="The rows as CSV on stdout.")
@click.option("--tables", is_flag=True, help="List the tables that can be asked.")
@option("--rows", type=click.IntRange(1, 1_000_000), default=1000, help="At most this many rows.")
@option(
    "--timeout",
    "timeout_s",
    type=Finite(0.1, 3600),
    default=30.0,
    help="Time limit of the query, s.",
)
@option("--memory-mb", type=click.IntRange(16, 65536), default=512, help="Memory limit of the query, MB.")
def query(
    sql: str,
    folder: Path,
    as_json: bool,
    as_csv: bool,
    tables: bool,
    rows: int,
    timeout_s: float,
    memory_mb: int,
) -> None:
    """Ask all runs below FOLDER (default: experiments) in SQL: one SELECT, in DuckDB's dialect.

    Tables: runs, steps, findings, figures, and each room's tables/*.csv and *.parquet as ROOM_TABLE with a
    column `run`. Read-only; SQL reaches no file and no network. Exit code 1 where rows were cut or a file
    could not be read.
    """
    import msgspec

    from lab.errors import UsageError, needs
    from lab.serve.sql.ask import ask

    if tables:
        sql, folder = "", Path(sql) if sql else folder
    if not sql and not tables:
        raise UsageError(
            "no question", fix="lab query 'select * from runs', or --tables to see what there is"
        )
    if not folder.is_dir():
        from lab.errors import MissingError

        raise MissingError("no such folder", location=folder, fix="name the folder that holds the runs")
    with needs("query"):
        _need("duckdb", "pyarrow")
    if sql:
        _raise_without_runs(folder)
    answer = ask(folder, sql, most_rows=rows, timeout_s=timeout_s, memory_mb=memory_mb)
    if as_json:
        click.echo(msgspec.json.encode(answer))
    elif not answer.error:
        text = _csv(answer) if as_csv else _text(answer) if sql else _tables(answer)
        click.echo(text, nl=not as_csv)
    _raise_for(answer, rows)


def _raise_without_runs(folder: Path) -> None:
    """Raises MissingError for a folder without runs, whose answer of no rows would read as a finding."""
    from lab.errors import MissingError
    from lab.serve.walk import walk

    if not walk(folder).runs:
        raise MissingError(
            "no runs below this folder", location=folder, fix="name the folder that holds the runs"
        )


def _raise_for(answer: Answer, most_rows: int) -> None:
    """Raise UsageError for a wrong question, StepFailed for an answer that is not whole."""
    from lab.core.words import listed
    from lab.errors import StepFailed, UsageError

    if answer.limited:
        words = listed(answer.error, answer.notes) if answer.notes else answer.error
        raise StepFailed(words, fix="--timeout and --memory-mb give it more")
    if answer.error:
        fix = "lab query --tables shows what can be asked" if "Catalog Error" in answer.error else None
        raise UsageError(answer.error, fix=fix)
    if answer.notes:
        raise StepFailed(listed("the answer is not complete", answer.notes))
    if answer.cut:
        fix = (
            "--rows N"
            if len(answer.rows) >= most_rows
            else "fewer columns, or shorter texts: an answer is full"
        )
        raise StepFailed(f"cut after {len(answer.rows):,} rows: there are more", fix=fix)


def _need(*packages: str) -> None:
    """Raises ModuleNotFoundError for a package that only the child process will import."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _csv(answer: Answer) -> str:
    import csv
    import io

    from lab.core.words import inert

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([inert(name) for name in answer.columns])
    writer.writerows([["" if one is None else inert(one) for one in row] for row in answer.rows])
    return text.getvalue()


def _text(answer: Answer) -> str:
    """Columns side by side; one block per row where they do not fit a terminal."""
    from lab.core.words import plural, printable

    cells = [
        ["" if one is None else printable(str(one)).replace("\n", " ") for one in row] for row in answer.rows
    ]
    heads = [printable(name) for name in answer.columns]
    widths = [max([len(head), *(len(row[index]) for row in cells)]) for index, head in enumerate(heads)]
    count = f"\n{plural(len(cells), 'row')}{' (cut)' if answer.cut else ''}"
    if sum(widths) + 2 * len(widths) > 200:
        wide = max(map(len, heads), default=0)
        blocks = [
            "\n".join(f"{head:>{wide}}  {cell}" for head, cell in zip(heads, row, strict=True))
            for row in cells
        ]
        return "\n\n".join(blocks) + count
    numbers = [
        all(isinstance(row[index], (int, float, type(None))) for row in answer.rows)
        for index in range(len(heads))
    ]
    lines = [
        "  ".join(
            f"{cell:>{wide}}" if right else f"{cell:<{wide}}"
            for cell, wide, right in zip(row, widths, numbers, strict=True)
        )
        for row in [heads, ["-" * wide for wide in widths], *cells]
    ]
    return "\n".join(line.rstrip() for line in lines) + count


def _tables(answer: Answer) -> str:
    from lab.core.words import plural

    lines = []
    for table in answer.tables:
        files = f" ({plural(table.files, 'file')})" if table.files else ""
        lines.append(f"{table.name}: {table.contents}{files}")
        if table.columns:
            lines.append(f"  {', '.join(table.columns)}")
    return "\n".join(lines)
