"""`lab inspect`: show what a file is, who recorded it, what it lacks and what reads it."""

from __future__ import annotations

from pathlib import Path

import click

from lab.core.words import listed
from lab.errors import BadDataError, MissingError, needs
from lab.terminal.findings import REQUIRE, raise_for_holes, raise_unless_complete
from lab.terminal.options import PATH, as_json, print_json


@click.command()
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="FILE|FOLDER...")
@as_json("One object per file")
@REQUIRE
def inspect(paths: tuple[Path, ...], as_json: bool, require: str | None) -> None:
    """Show what FILEs and FOLDERs are, who recorded them, what they lack, and what reads them.

    Every recording gets a verdict: complete, lossy or unknown, on three axes: rows of the GPU, calls of the
    host, operators of the framework. Exit 1 for a hole in one of them; files that cannot be read are rows
    with their reason (exit 5).
    """
    from lab.recordings.integrity.words import sentences

    with needs("analysis"):
        from lab.recordings.inspect import inspect_all, rows_text
    rows = inspect_all(paths)
    if not rows:
        raise MissingError(
            "no recording, and nothing else that lab knows",
            location=", ".join(map(str, paths)),
            fix="name a trace, an export or a database of a profiler, or a folder of them",
        )
    if as_json:
        print_json(rows)
    else:
        click.echo(rows_text(rows))
    unread = [row for row in rows if row.error is not None]
    if unread:
        lines = [f"{row.path}: {row.error}" for row in unread]
        raise BadDataError(listed(f"{len(unread)} of {len(rows)} cannot be read", lines))
    if require == "complete":
        doubtful = [row for row in rows if row.verdict not in ("complete", None)]
        lacks = [f"{row.path}: {text}" for row in doubtful for text in sentences(row.lacks)]
        if all(row.verdict is None for row in rows):
            lacks = ["no file here is a recording that lab judges: name the trace, or a folder that holds it"]
        raise_unless_complete(lacks, ", ".join(map(str, paths)))
    raise_for_holes({row.path: row.lacks for row in rows})
