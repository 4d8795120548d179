"""`lab nsys summary` and `stats`: one capture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.terminal.findings import REQUIRE, raise_for_lacks
from lab.terminal.options import as_json, option, out
from lab.terminal.part import PART, PHASE, part_options, phase_names, projections

if TYPE_CHECKING:
    from lab.recordings.capture import Capture
    from lab.recordings.lacks import Lack
    from lab.recordings.projection import Projection
    from lab.rooms.nsys.captures.summary import Summary

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
    """Phases, kernel classes, GPU busy and idle time of FILE, any recording; per process."""
    from lab.errors import MissingError, needs

    part = part_options(flags)
    names = phase_names(phases)
    with needs("analysis"):
        from lab.rooms.nsys.captures.summary import summaries
        from lab.rooms.nsys.captures.summary_text import summaries_text

        every = projections(file, attribution, names, part, captures=captures)
    if scrubbed:
        _scrub(file, scrubbed, err=as_json)
    used = [(index, one) for index, one in every if len(one.capture.ops)]
    if not used:
        raise MissingError(
            "the capture has no GPU work to summarise",
            location=file,
            fix=f"record on a GPU, with its kernels traced: {_contents([one.capture for _, one in every])}",
        )
    per_process = summaries(used, names.pattern)
    text = summaries_text(per_process)
    missing = _write(used, text, out) if out else []
    click.echo(_json(per_process) if as_json else text, nl=as_json)
    for line in _idle_processes(every):
        click.echo(line, err=True)
    for reason in missing:
        click.echo(f"not written: {reason}", err=True)
    raise_for_lacks(_lacks(every), file, require=require)
    _raise_for_captures([one for _, one in every], captures)
    _raise_for_bare_steps(per_process, file)
    if not any(len(one.capture.ranges) for _, one in used):
        raise MissingError(
            "the capture has no ranges, so there are no phases",
            location=file,
            fix="record with NVTX or rocTX ranges (--trace=cuda,nvtx; --marker-trace) or record_function",
        )


def _scrub(file: Path, target: Path, *, err: bool) -> None:
    from lab.core.words import plural
    from lab.recordings.nsys.scrub import scrub

    removed = scrub(file, target)
    click.echo(
        f"{target}: {plural(removed.rows, 'row')} and {plural(removed.strings, 'string')} removed, "
        f"{removed.bytes_before} -> {removed.bytes_after} bytes",
        err=err,
    )


def _json(per_process: Sequence[Summary]) -> str:
    """One object; of several processes one in `processes` each."""
    if len(per_process) == 1:
        return json.dumps(per_process[0].as_json(), indent=1)
    first = per_process[0]
    about = {"source": first.source, "collector": first.collector, "version": first.version}
    return json.dumps({**about, "processes": [one.as_json() for one in per_process]}, indent=1)


def _idle_processes(every: Sequence[tuple[int, Projection]]) -> list[str]:
    from lab.recordings.processes import process_label

    return [
        f"{process_label(one.capture.processes[0], index)}: no GPU work ({_contents([one.capture])})"
        for index, one in every
        if not len(one.capture.ops)
    ]


def _lacks(every: Sequence[tuple[int, Projection]]) -> list[Lack]:
    return list(dict.fromkeys(lack for _, one in every for lack in one.capture.lacks))


def _raise_for_bare_steps(per_process: Sequence[Summary], file: Path) -> None:
    """Raises StepFailed where steps are marked and nothing is known to have run in them: 0 kernels is not
    what they launched."""
    from lab.core.words import plural
    from lab.errors import StepFailed

    bare = [one for one in per_process if one.has_bare_steps]
    if bare:
        raise StepFailed(
            f"of {plural(bare[0].left_out[0], 'GPU operation')} none is known to belong to a step",
            location=file,
            fix="record the API calls too: they say which step launched what",
        )


def _raise_for_captures(every: Sequence[Projection], captures: tuple[Path, ...]) -> None:
    """Raise StepFailed, once all is written, where a given capture did not serve."""
    from lab.errors import StepFailed

    origins = [one.origins for one in every if one.origins is not None]
    lines = list(dict.fromkeys(text for one in origins for text in one.problems)) if captures else []
    if lines:
        raise StepFailed(
            "written, but incomplete:\n" + "\n".join(f"  {line}" for line in lines),
            location=every[0].capture.source,
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
    type=click.Choice(ATTRIBUTION),
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
    from lab.core.files import write_atomic
    from lab.errors import MissingError, needs

    part = part_options(flags)
    with needs("analysis"):
        from lab.rooms.nsys.captures.stats.reports import REPORTS, available, check_name, report

        names = [name.strip() for name in reports.split(",") if name.strip()]
        if reports == "all":
            names = list(REPORTS)
        for name in names:
            check_name(name)
        parts = projections(file, attribution, phase_names(()), part, together=not each_process)
    _say_lacks(_lacks(parts))
    several = len(parts) > 1
    if not several and len(parts[0][1].capture.processes) > 1:
        count = len(parts[0][1].capture.processes)
        click.echo(
            f"{count} processes in one table, as nsys prints them; --each-process tells them apart", err=True
        )
    reasons: list[str] = []
    for index, projection in parts:
        absent = available(projection.capture) if reports == "all" or several else {}
        reasons += [_reason(name, absent[name], projection, several) for name in names if absent.get(name)]
        for name in names:
            if absent.get(name):
                continue
            made = report(name, projection)
            whose = f"_process_{projection.capture.processes[0].pid or index}" if several else ""
            if out:
                target = out / f"{file.name.split('.')[0]}{whose}_{name}.csv"
                write_atomic(target, made.csv())
                click.echo(target)
            else:
                heading = f"# {name}{whose.replace('_', ' ')}\n" if len(names) > 1 or several else ""
                click.echo(heading + made.csv(), nl=bool(heading))
            for problem in made.problems:
                click.echo(f"{name}: {problem}", err=True)
    for reason in reasons:
        click.echo(f"not written: {reason}", err=True)
    raise_for_lacks(_lacks(parts), file, require=require)
    if reasons:
        raise MissingError("no data for some reports:\n  " + "\n  ".join(reasons), location=file)


def _reason(name: str, why: str, projection: Projection, several: bool) -> str:
    return f"{name}{f', process {projection.capture.processes[0].pid}' if several else ''}: {why}"


def _say_lacks(lacks: Sequence[Lack]) -> None:
    """On stderr, because stdout is CSV of nsys' own form."""
    from lab.recordings.integrity.words import integrity_lines

    if lacks:
        click.echo("\n".join(integrity_lines(lacks)), err=True)


def _contents(captures: Sequence[Capture]) -> str:
    from lab.core.words import plural

    tables = {"range": "ranges", "API call": "api", "wait": "sync"}
    counts = {what: sum(len(getattr(one, name)) for one in captures) for what, name in tables.items()}
    return "it has " + ", ".join(plural(count, what) for what, count in counts.items())


def _write(used: Sequence[tuple[int, Projection]], text: str, out: Path) -> list[str]:
    """Write ANALYSIS_SUMMARY.txt and every report with data, per process if there are several.

    Returns why the others are missing.
    """
    from lab.core.files import write_atomic
    from lab.rooms.nsys.captures.stats.reports import write_reports

    write_atomic(out / "ANALYSIS_SUMMARY.txt", text)
    missing: list[str] = []
    for index, projection in used:
        pid = projection.capture.processes[0].pid
        folder = out / "stats_reports"
        folder = folder / f"process_{pid or index}" if len(used) > 1 else folder
        stem = projection.capture.source.name.split(".")[0]
        missing += write_reports(projection, folder, stem)
    return list(dict.fromkeys(missing))
