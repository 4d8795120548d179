"""`lab nsys summary`, `stats` and `scrub`: one capture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from lab.terminal.options import as_json, option, out

FILE = click.argument("file", type=click.Path(path_type=Path))
ATTRIBUTION = ["full", "nsys"]


@click.command()
@FILE
@option(
    "--attribution",
    type=click.Choice(ATTRIBUTION),
    default="full",
    help="full: backward owns what autograd's thread launched; nsys: the rule of nsys' own reports.",
)
@click.option(
    "--phase",
    "phases",
    metavar="REGEX",
    help="Names of ranges that also own launches of other threads. "
    "[default: forward, backward, optimizer_step and the like]",
)
@click.option(
    "--capture",
    "captures",
    multiple=True,
    metavar="FILE|FOLDER",
    type=click.Path(path_type=Path),
    help="Trace of the graphs' capture, or of an eager run, that names their operators. Repeatable.",
)
@out("Folder for ANALYSIS_SUMMARY.txt and stats_reports/*.csv.")
@as_json("The figures")
def summary(
    file: Path,
    attribution: str,
    phases: str | None,
    captures: tuple[Path, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Phases, kernel classes, GPU busy and idle time of FILE (.sqlite[.gz], .nsys-rep, .json[.gz])."""
    from lab.errors import MissingError
    from lab.rooms.nsys.captures.summary import summarise
    from lab.rooms.nsys.captures.summary_text import summary_text

    projection = _projected(file, attribution, phases, captures)
    capture = projection.capture
    if not len(capture.ops):
        raise MissingError(
            "the capture has no GPU work to summarise",
            where=file,
            fix=f"record on a GPU, with CUDA traced: {_contents(capture)}",
        )
    found = summarise(projection)
    missing = _write(projection, summary_text(found), out) if out else []
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    else:
        click.echo(summary_text(found), nl=False)
    if not len(capture.ranges):
        raise MissingError(
            "the capture has no ranges, so there are no phases",
            where=file,
            fix="record with NVTX ranges (--trace=cuda,nvtx) or record_function",
        )
    for reason in missing:
        click.echo(f"not written: {reason}", err=True)
    _raise_for_replays(projection, captures)


@click.command()
@FILE
@option(
    "-r",
    "--report",
    "reports",
    default="cuda_gpu_kern_sum",
    metavar="NAME,...",
    help="Names as in `nsys stats`, or all.",
)
@option(
    "--attribution",
    type=click.Choice(ATTRIBUTION),
    default="nsys",
    help="nsys: the numbers that nsys prints; full: backward owns its kernels.",
)
@out("Folder for one CSV per report.")
def stats(file: Path, reports: str, attribution: str, out: Path | None) -> None:
    """The reports of `nsys stats` for FILE, as CSV, computed without nsys."""
    from lab.core.files import write_atomic
    from lab.errors import MissingError
    from lab.rooms.nsys.captures.stats.reports import REPORTS, available, report

    names = [name.strip() for name in reports.split(",") if name.strip()]
    if reports == "all":
        names = list(REPORTS)
    projection = _projected(file, attribution, None)
    absent = available(projection.capture) if reports == "all" else {}
    for name in names:
        if absent.get(name):
            continue
        made = report(name, projection)
        if out:
            target = out / f"{file.name.split('.')[0]}_{name}.csv"
            write_atomic(target, made.csv())
            click.echo(target)
        else:
            click.echo(f"# {name}\n{made.csv()}" if len(names) > 1 else made.csv(), nl=len(names) > 1)
        for problem in made.problems:
            click.echo(f"{name}: {problem}", err=True)
    if missing := [f"{name}: {reason}" for name, reason in absent.items() if reason]:
        raise MissingError("no data for some reports:\n  " + "\n  ".join(missing), where=file)


@click.command()
@FILE
@click.argument("target", type=click.Path(path_type=Path))
def scrub(file: Path, target: Path) -> None:
    """Write TARGET, a copy of the export FILE without environment, command line, users, paths and output."""
    from lab.core.words import plural
    from lab.recordings.nsys.scrub import scrub as scrub_export

    done = scrub_export(file, target)
    click.echo(
        f"{target}: {plural(done.rows, 'row')} and {plural(done.strings, 'string')} removed, "
        f"{done.bytes_before} -> {done.bytes_after} bytes"
    )


def _raise_for_replays(projection: Any, captures: tuple[Path, ...]) -> None:
    """Raise StepFailed, once all is written, where replays lack rows or a given capture did not serve."""
    from lab.errors import StepFailed
    from lab.recordings.lacks import holes

    origins = projection.origins
    lines = [lack.text for lack in holes(origins.lacks)] if origins else []
    lines += origins.problems if origins and captures else []
    if lines:
        raise StepFailed(
            "written, but incomplete:\n" + "\n".join(f"  {line}" for line in lines),
            where=projection.capture.source,
        )


def _projected(
    file: Path, attribution: str, phases: str | None, captures: tuple[Path, ...] | None = None
) -> Any:
    import re

    from lab.errors import UsageError, needs

    with needs("analysis"):
        from lab.recordings.graphs import load_sources
        from lab.recordings.graphs.batches import executed_batches
        from lab.recordings.graphs.origins import origins_of
        from lab.recordings.load import load_capture
        from lab.recordings.projection import PHASES, project
    try:
        pattern = re.compile(phases) if phases else PHASES
    except re.error as error:
        raise UsageError(f"--phase is not a valid regular expression: {error}") from error
    capture = load_capture(file)
    if captures is None:  # reports in nsys' own figures
        return project(capture, attribution, pattern)
    beside, notes = load_sources(captures, executed_batches(capture)) if captures else ([], [])
    capture.problems.extend(notes)
    return project(capture, attribution, pattern, origins_of(capture, beside))


def _contents(capture: Any) -> str:
    from lab.core.words import plural

    tables = {"range": capture.ranges, "API call": capture.api, "wait": capture.sync}
    return "it has " + ", ".join(plural(len(table), what) for what, table in tables.items())


def _write(projection: Any, text: str, out: Path) -> list[str]:
    """Write ANALYSIS_SUMMARY.txt and every report with data; returns why the others are missing."""
    from lab.core.files import write_atomic
    from lab.rooms.nsys.captures.stats.reports import write_reports

    write_atomic(out / "ANALYSIS_SUMMARY.txt", text)
    stem = projection.capture.source.name.split(".")[0]
    return write_reports(projection, out / "stats_reports", stem)
