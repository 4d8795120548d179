"""`lab nan parse` and `lab diff` of nixnan's logs, without a GPU and without the run that made them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.terminal.options import as_json, quiet

if TYPE_CHECKING:
    from lab.errors import LabError
    from lab.rooms.nan.nixnan.log import Log

LOG_NAMES = re.compile(r".*\.(nixnan|nnlog)(\.gz)?|nixnan.*\.(log|txt)(\.gz)?")
TEXT_NAMES = re.compile(r".*\.(nixnan|nnlog|log|txt|out|err)(\.gz)?")
LEAST_WITH_PROGRESS = 64 << 20
SNIFFED_BYTES = 64 << 10
QUIET = quiet()


@click.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="LOG...")
@as_json("One object per log, one per line,")
@click.option(
    "--sites",
    "sites_csv",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the table of sites to this CSV.",
)
@QUIET
def parse(logs: tuple[Path, ...], as_json: bool, sites_csv: Path | None, quiet: bool) -> None:
    """Read nixnan logs (also .gz): what they hold, and whether that is all.

    A folder stands for the logs in it; text files in it without a line of nixnan are named. Counts are of
    lines, one per distinct instruction, mask and operand; a log is complete when they equal the report nixnan
    wrote at the end; exit code 1 unless every log is. Zero events say nothing about what nixnan does not see.
    """
    import msgspec

    from lab.core.words import plural
    from lab.errors import LabError, StepFailed
    from lab.rooms.nan.nixnan.reading import parse as reader
    from lab.rooms.nan.nixnan.terminal import described

    read: list[Log] = []
    failed: list[LabError] = []
    paths, skipped = list[Path](), list[tuple[Path, str]]()
    for path in logs:
        paths += logs_at(path, skipped)
    for path, reason in skipped:
        row = {"file": str(path), "skipped": reason}
        click.echo(msgspec.json.encode(row) if as_json else f"{path}: left out, {reason}\n")
    for path in paths:
        try:
            log = reader.parse(path, progress=_progress(path, quiet or as_json))
        except LabError as error:
            if len(logs) == 1 and not logs[0].is_dir():
                raise
            failed.append(error)
            click.echo(f"{error}\n", err=True)
            if as_json:
                click.echo(msgspec.json.encode({"file": str(path), "error": error.problem, "fix": error.fix}))
            continue
        read.append(log)
        click.echo(msgspec.json.encode(reader.as_json(log)) if as_json else described(log))
    if sites_csv:
        write_sites(read, sites_csv)
    if failed:
        total = len(failed) + len(read)
        raise StepFailed(f"{len(failed)} of {total} logs could not be read", location=failed[0].location)
    _refuse_foreign(read)
    if empty := [log.file for log in read if log.integrity == "empty"]:
        raise StepFailed(
            f"no event and no report in {len(empty)} of {plural(len(read), 'log')}: nothing was watched",
            location=empty[0],
            fix="look whether the program used a GPU, and whether a child process overwrote the log",
        )
    _raise_unless_complete(read)


def recognises(path: Path) -> bool:
    """Whether `path` is a log of nixnan, by its name or first lines, or a folder of logs with such names."""
    if path.is_dir():
        return any(_logs_in(path))
    return path.is_file() and (LOG_NAMES.fullmatch(path.name) is not None or _begins_as_log(path))


def _begins_as_log(path: Path) -> bool:
    import gzip
    import zlib

    from lab.rooms.nan.nixnan.grammar import PREFIX

    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return any(line.startswith(PREFIX) for line in file.read(SNIFFED_BYTES).splitlines())
    except (OSError, EOFError, zlib.error):
        return False  # cannot be read: whoever reads it next says why


def diff(a: Path, b: Path, *, repeat_a: Path | None, as_json: bool) -> None:
    """Compare the sites of two logs, or of two folders with one log each.

    A site is (function, SASS, operand). Without a repeat of A the difference is shown and not judged. Raises
    UsageError for a folder of several logs, StepFailed unless the logs are complete.
    """
    import msgspec

    from lab.rooms.nan.nixnan.judging.diff import diff as compare
    from lab.rooms.nan.nixnan.reading import parse as reader
    from lab.rooms.nan.nixnan.terminal import compared

    paths = [_only_log(path) for path in (a, b, repeat_a) if path]
    logs = [reader.parse(path, progress=_progress(path, as_json)) for path in paths]
    _refuse_foreign(logs)
    difference = compare(logs[0], logs[1], logs[2] if repeat_a else None)
    click.echo(msgspec.json.encode(difference) if as_json else compared(difference))
    _raise_unless_complete(logs)


def _only_log(path: Path) -> Path:
    from lab.errors import UsageError

    paths = logs_at(path)
    if len(paths) > 1:
        raise UsageError(
            f"{len(paths)} nixnan logs in this folder: which one is compared?",
            location=path,
            fix=f"name the file, such as {paths[0]}",
        )
    return paths[0]


def logs_at(path: Path, skipped: list[tuple[Path, str]] | None = None) -> list[Path]:
    """The logs that `path` stands for: itself, or all in the folder, by their names or their first lines.

    Text files without a line of nixnan go to `skipped`, with the reason. Raises MissingError if there are no
    logs.
    """
    from lab.errors import MissingError

    if not path.is_dir():
        return [path]
    texts = sorted(file for file in path.rglob("*") if TEXT_NAMES.fullmatch(file.name) and file.is_file())
    named = {*_logs_in(path)}
    logs = [file for file in texts if file in named or _begins_as_log(file)]
    logs = sorted({*logs, *named})
    if skipped is not None:
        reason = f"no line of nixnan in its first {SNIFFED_BYTES >> 10} KiB"
        skipped += [(file, reason) for file in texts if file not in logs]
    if not logs:
        raise MissingError(
            "no nixnan log in this folder",
            location=path,
            fix="name the files: a folder is searched for *.nixnan and *.nnlog, and for *.log, *.txt, "
            "*.out and *.err that begin with lines of nixnan",
        )
    return logs


def _logs_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if LOG_NAMES.fullmatch(path.name) and path.is_file())


def write_sites(logs: Sequence[Log], path: Path) -> None:
    """All listed sites as a CSV, one row per site."""
    import pandas as pd

    from lab.report.tables import write_csv
    from lab.rooms.nan.nixnan.grammar import KINDS, category

    rows = [
        {
            "file": site.file,
            "function": site.function,
            "category": category(log.twins.get(site.function, site.function)),
            "sass": site.sass,
            "opcode": site.opcode,
            "operand": site.operand,
            "type": site.type,
            "lines": site.lines,
            **{kind: site.kinds.get(kind, 0) for kind in KINDS},
            "places": " ".join(site.places),
            "line": site.line,
        }
        for log in logs
        for site in log.sites
    ]
    write_csv(pd.DataFrame(rows), path)


def _refuse_foreign(read: Sequence[Log]) -> None:
    """Raises BadDataError for a file with text, but without a line of nixnan's, and for a compressed one cut
    before its first line; an empty file is an empty log.
    """
    from lab.errors import BadDataError

    for log in read:
        if not log.lines and log.integrity == "truncated":
            raise BadDataError(log.reasons[0], location=log.file, fix="copy the log again")
        if 0 < log.lines == log.foreign_lines:
            raise BadDataError(
                "no line of nixnan's in this file",
                location=log.file,
                fix="name a log of nixnan (its LOGFILE, or its stderr)",
            )


def _raise_unless_complete(read: Sequence[Log]) -> None:
    """Raises StepFailed for logs that are cut, torn or disagree with their report."""
    from lab.core.words import plural
    from lab.errors import StepFailed

    if incomplete := [log for log in read if log.integrity != "complete"]:
        log = incomplete[0]
        raise StepFailed(
            f"{len(incomplete)} of {plural(len(read), 'log')} not complete: "
            f"{log.integrity}. {log.reasons[0]}",
            location=log.file,
            fix="take its counts as lower bounds, or let the program run to its end with a log of its own",
        )


def _progress(path: Path, quiet: bool) -> Callable[[int, int], None] | None:
    """Prints a line per tenth of a large log; None for a small one."""
    if quiet or not path.is_file() or path.stat().st_size < LEAST_WITH_PROGRESS:
        return None
    shown = 0

    def show(position: int, size: int) -> None:
        nonlocal shown
        tenths = 10 * position // max(size, 1)
        if tenths > shown:
            shown = tenths
            click.echo(f"{path.name}: {10 * tenths} % of {size / 1e6:.0f} MB", err=True)

    return show
