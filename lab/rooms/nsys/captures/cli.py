"""`lab nsys summary` and `stats`: one capture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.core.files import write_atomic
from lab.core.words import plural
from lab.errors import MissingError, StepFailed, needs
from lab.terminal.findings import REQUIRE, raise_for_lacks
from lab.terminal.options import as_json, option, out
from lab.terminal.part import PART, PHASE, part_options, phase_names, projections

if TYPE_CHECKING:
    from lab.recordings.lacks import Lack
    from lab.recordings.projection import Projection
    from lab.rooms.nsys.captures.summary import Summary

Parts = Sequence[tuple[int, "Projection"]]  # index of the process in the recording, its projection

FILE = click.argument("file", type=click.Path(path_type=Path))
ATTRIBUTION = click.Choice(["full", "nsys"])


@click.command()
@FILE
@option(
    "--attribution",
    type=ATTRIBUTION,
    default="full",
    help="full: backward owns what autograd's thread launched; nsys: the rule of nsys' own reports.",
)
@PHASE
@PART
@click.option(
    "--capture",
    "captures",
    multiple=True,
    metavar="FILE|FOLDER",
    type=click.Path(path_type=Path),
    help="Trace of the graphs' capture, or of an eager run, that names their operators. Repeatable.",
)
@click.option(
    "--scrubbed",
    metavar="TARGET",
    type=click.Path(path_type=Path),
    help="Also copy the export FILE to TARGET, without environment, command line, users, paths and output.",
)
@out("Folder for ANALYSIS_SUMMARY.txt and stats_reports/*.csv.")
@as_json("The figures")
@REQUIRE
def summary(
    file: Path,
    attribution: str,
    phases: tuple[str, ...],
    captures: tuple[Path, ...],
    scrubbed: Path | None,
    out: Path | None,
    as_json: bool,
    require: str | None,
    **flags: Any,
) -> None:
    """Phases, kernel classes, GPU busy and idle time of FILE, any recording; per process.

    A recording without ranges has no phases: they are unknown, its kernels are not.
    """

    part = part_options(flags)
    names = phase_names(phases)
    with needs("analysis"):
        from lab.rooms.nsys.captures.summary import summaries
        from lab.rooms.nsys.captures.summary_text import summaries_text

        parts = projections(file, attribution, names, part, captures=captures)
    if scrubbed:
        _scrub(file, scrubbed, err=as_json)
    used = [(index, projection) for index, projection in parts if len(projection.capture.ops)]
    if not used:
        contents = _contents([projection for _, projection in parts])
        raise MissingError(
            "the capture has no GPU work to summarise",
            location=file,
            fix=f"record on a GPU, with its kernels traced: {contents}",
        )
    per_process = summaries(used, names.pattern)
    text = summaries_text(per_process)
    reasons = _write(used, text, out) if out else []
    click.echo(_json(per_process) if as_json else text, nl=as_json)
    for line in _idle_processes(parts):
        click.echo(line, err=True)
    _say_not_written(reasons)
    raise_for_lacks(_lacks(parts), file, require=require)
    if captures:
        _raise_for_origins(parts, file)
    _raise_for_bare_steps(per_process, file)


def _scrub(file: Path, target: Path, *, err: bool) -> None:
    from lab.recordings.nsys.scrub import scrub

    removed = scrub(file, target)
    click.echo(
        f"{target}: {plural(removed.rows, 'row')} and {plural(removed.strings, 'string')} removed, "
        f"{removed.bytes_before} -> {removed.bytes_after} bytes",
        err=err,
    )


def _json(per_process: Sequence[Summary]) -> str:
    """One object; of several processes one in `processes` each."""
    documents = [summary.as_json() for summary in per_process]
    if len(documents) == 1:
        return json.dumps(documents[0], indent=1)
    about = {name: documents[0][name] for name in ("source", "collector", "version")}
    return json.dumps({**about, "processes": documents}, indent=1)


def _idle_processes(parts: Parts) -> list[str]:
    from lab.recordings.processes import process_label

    return [
        f"{process_label(projection.capture.processes[0], index)}: no GPU work ({_contents([projection])})"
        for index, projection in parts
        if not len(projection.capture.ops)
    ]


def _lacks(parts: Parts) -> list[Lack]:
    return list(dict.fromkeys(lack for _, projection in parts for lack in projection.capture.lacks))


def _raise_for_bare_steps(per_process: Sequence[Summary], file: Path) -> None:
    """Raises StepFailed where steps are marked and nothing is known to have run in them: 0 kernels is not
    what they launched."""

    for summary in per_process:
        if summary.has_bare_steps:
            uncalled = summary.rules["unattributed"][0]
            raise StepFailed(
                f"of {plural(summary.left_out[0], 'GPU operation')} none is known to belong to a step",
                location=file,
                fix="record the API calls too: they say which step launched what"
                if uncalled
                else "rows of the GPU are missing: record again, and stop only after the GPU has finished",
            )


def _raise_for_origins(parts: Parts, file: Path) -> None:
    """Raises StepFailed, once all is written, where a capture of --capture did not serve."""

    origins = [projection.origins for _, projection in parts if projection.origins is not None]
    lines = dict.fromkeys(text for origin in origins for text in origin.problems)
    if lines:
        raise StepFailed(
            "written, but incomplete:\n" + "\n".join(f"  {line}" for line in lines), location=file
        )


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
    type=ATTRIBUTION,
    default="nsys",
    help="nsys: the numbers that nsys prints; full: backward owns its kernels.",
)
@PART
@click.option("--each-process", is_flag=True, help="One table per process; nsys itself adds them up.")
@out("Folder for one CSV per report.")
@REQUIRE
def stats(
    file: Path,
    reports: str,
    attribution: str,
    each_process: bool,
    out: Path | None,
    require: str | None,
    **flags: Any,
) -> None:
    """The reports of `nsys stats` for FILE, any recording, as CSV, computed without nsys."""
    from lab.recordings.integrity.words import integrity_lines

    part = part_options(flags)
    with needs("analysis"):
        from lab.rooms.nsys.captures.stats.reports import REPORTS, check_names, missing, report

        names = [name.strip() for name in reports.split(",") if name.strip()]
        names = list(REPORTS) if reports == "all" else check_names(names)
        parts = projections(file, attribution, phase_names(()), part, together=not each_process)
    if lacks := _lacks(parts):  # on stderr, because stdout is CSV of nsys' own form
        click.echo("\n".join(integrity_lines(lacks)), err=True)
    several = len(parts) > 1
    if not several and (count := len(parts[0][1].capture.processes)) > 1:
        hint = "processes in one table, as nsys prints them; --each-process tells them apart"
        click.echo(f"{count} {hint}", err=True)
    reasons: list[str] = []
    for index, projection in parts:
        pid = projection.capture.processes[0].pid
        for name in names:
            if reason := missing(name, projection.capture):
                reasons.append(f"{name}{f', process {pid}' if several else ''}: {reason}")
                continue
            table = report(name, projection)
            suffix = f"_process_{pid or index}" if several else ""
            if out:
                target = out / f"{file.name.split('.')[0]}{suffix}_{name}.csv"
                write_atomic(target, table.csv())
                click.echo(target)
            else:
                heading = f"# {name}{suffix.replace('_', ' ')}\n" if len(names) > 1 or several else ""
                click.echo(heading + table.csv(), nl=bool(heading))
            for problem in table.problems:
                click.echo(f"{name}: {problem}", err=True)
    _say_not_written(reasons)
    raise_for_lacks(lacks, file, require=require)
    if reasons:
        raise MissingError("no data for some reports:\n  " + "\n  ".join(reasons), location=file)


def _say_not_written(reasons: Sequence[str]) -> None:
    for reason in reasons:
        click.echo(f"not written: {reason}", err=True)


def _contents(projections: Sequence[Projection]) -> str:

    captures = [projection.capture for projection in projections]
    counts = {
        "range": sum(len(capture.ranges) for capture in captures),
        "API call": sum(len(capture.api) for capture in captures),
        "wait": sum(len(capture.sync) for capture in captures),
    }
    return "it has " + ", ".join(plural(count, noun) for noun, count in counts.items())


def _write(used: Parts, text: str, out: Path) -> list[str]:
    """Write ANALYSIS_SUMMARY.txt and every report with data, per process if there are several.

    Returns why the others are missing.
    """
    from lab.rooms.nsys.captures.stats.reports import REPORTS, write_reports

    write_atomic(out / "ANALYSIS_SUMMARY.txt", text)
    reasons: list[str] = []
    for index, projection in used:
        folder = out / "stats_reports"
        if len(used) > 1:
            folder /= f"process_{projection.capture.processes[0].pid or index}"
        stem = projection.capture.source.name.split(".")[0]
        reasons += write_reports(projection, REPORTS, folder, stem)[1]
    return list(dict.fromkeys(reasons))
