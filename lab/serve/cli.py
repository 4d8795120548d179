"""`lab serve` and `lab query`: the commands over all runs below a folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.terminal.options import PATH, as_json, option

if TYPE_CHECKING:
    from lab.serve.sql.answer import Answer

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
        from lab.serve.web.run import serve as run

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
        raise MissingError("no such folder", where=folder, fix="name the folder that holds the runs")
    with needs("mcp"):
        from lab.serve.mcp_server import serve as run
    run(folder)


@click.command("export")
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@click.option(
    "--to",
    "form",
    required=True,
    type=click.Choice(["perfetto", "chrome", "xlsx", "parquet", "chakra"]),
    help="perfetto: .pftrace.gz; chrome: Trace Event JSON; chakra: .et per rank, with stream order.",
)
@option("-o", "--out", type=PATH, default=Path("exports"), help="Folder for the files.")
def export(runs: tuple[Path, ...], form: str, out: Path) -> None:
    """Write RUNs, or recordings, in the formats of other tools: one file per step with all its ranks.

    Exit code 1 where something could not be read or is not in the export; each such thing is named.
    """
    from lab.core.words import listed, printable
    from lab.errors import StepFailed, needs

    with needs("analysis"):
        from lab.serve.export.all import export_run, with_place
        from lab.serve.export.ranks import MISSING

    notes: list[str] = []
    for run in runs:
        written, left = export_run(run, form, out)
        found = [printable(with_place(text, run.name)) for text in left]
        notes += [text for text in found if text.startswith(MISSING)]
        for text in found:
            if not text.startswith(MISSING):
                click.echo(f"note: {text}", err=True)
        for path in written:
            click.echo(printable(str(path)))
    if notes:
        raise StepFailed(listed("the export is not complete", notes, limit=40), where=out)


@click.command("query")
@click.argument("sql", required=False, default="")
@FOLDER
@as_json("The answer")
@click.option("--csv", "as_csv", is_flag=True, help="The rows as CSV on stdout.")
@click.option("--tables", is_flag=True, help="List the tables that can be asked.")
@click.option("--saved", metavar="NAME", help="A question that comes with lab; `list` shows them.")
@option("--rows", type=click.IntRange(1, 1_000_000), default=1000, help="At most this many rows.")
@option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 3600),
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
    saved: str | None,
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

    if tables or saved:
        sql, folder = "", Path(sql) if sql else folder
    if saved:
        sql = _saved(saved)
    if not sql and not tables:
        if saved == "list":
            return
        raise UsageError(
            "no question", fix="lab query 'select * from runs', or --tables to see what there is"
        )
    if not folder.is_dir():
        from lab.errors import MissingError

        raise MissingError("no such folder", where=folder, fix="name the folder that holds the runs")
    with needs("query"):
        _need("duckdb", "pyarrow")
    found = ask(folder, sql, most_rows=rows, timeout_s=timeout_s, memory_mb=memory_mb)
    if as_json:
        click.echo(msgspec.json.encode(found))
    elif not found.error:
        click.echo(_csv(found) if as_csv else _tables(found) if not sql else _text(found), nl=not as_csv)
    _raise_for(found, rows)


def _raise_for(found: Answer, most_rows: int) -> None:
    """Raises UsageError for a wrong question, StepFailed for an answer that is not whole."""
    from lab.core.words import listed
    from lab.errors import StepFailed, UsageError

    if found.limited:
        words = listed(found.error, found.notes) if found.notes else found.error
        raise StepFailed(words, fix="--timeout and --memory-mb give it more")
    if found.error:
        fix = "lab query --tables shows what can be asked" if "Catalog Error" in found.error else None
        raise UsageError(found.error, fix=fix)
    if found.notes:
        raise StepFailed(listed("the answer is not complete", found.notes))
    if found.cut:
        whole = len(found.rows) >= most_rows
        fix = "--rows N" if whole else "fewer columns, or shorter texts: an answer is full"
        raise StepFailed(f"cut after {len(found.rows):,} rows: there are more", fix=fix)


def _need(*packages: str) -> None:
    """Raises ModuleNotFoundError for a package that only the child process will import."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _saved(name: str) -> str:
    from lab.errors import UsageError
    from lab.serve.sql.saved import SAVED

    if name == "list":
        click.echo("\n\n".join(f"{name}\n  " + text.replace("\n", "\n  ") for name, text in SAVED.items()))
        return ""
    if name not in SAVED:
        raise UsageError(f"there is no saved question {name!r}", fix="lab query --saved list")
    return SAVED[name]


def _csv(found: Answer) -> str:
    import csv
    import io

    from lab.core.words import inert

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([inert(name) for name in found.columns])
    writer.writerows([["" if one is None else inert(one) for one in row] for row in found.rows])
    return text.getvalue()


def _text(found: Answer) -> str:
    """Columns side by side; a record per block where they do not fit a terminal."""
    from lab.core.words import plural, printable

    cells = [
        ["" if one is None else printable(str(one)).replace("\n", " ") for one in row] for row in found.rows
    ]
    heads = [printable(name) for name in found.columns]
    widths = [max([len(head), *(len(row[at]) for row in cells)]) for at, head in enumerate(heads)]
    count = f"\n{plural(len(cells), 'row')}{' (cut)' if found.cut else ''}"
    if sum(widths) + 2 * len(widths) > 200:
        wide = max(map(len, heads), default=0)
        blocks = [
            "\n".join(f"{head:>{wide}}  {one}" for head, one in zip(heads, row, strict=True)) for row in cells
        ]
        return "\n\n".join(blocks) + count
    numbers = [
        all(isinstance(row[at], (int, float, type(None))) for row in found.rows) for at in range(len(heads))
    ]
    lines = [
        "  ".join(
            f"{one:>{wide}}" if right else f"{one:<{wide}}"
            for one, wide, right in zip(row, widths, numbers, strict=True)
        )
        for row in [heads, ["-" * wide for wide in widths], *cells]
    ]
    return "\n".join(line.rstrip() for line in lines) + count


def _tables(found: Answer) -> str:
    lines = []
    for one in found.tables:
        files = f" ({one.files:,} files)" if one.files else ""
        lines.append(f"{one.name}: {one.what}{files}")
        if one.columns:
            lines.append(f"  {', '.join(one.columns)}")
    return "\n".join(lines)
