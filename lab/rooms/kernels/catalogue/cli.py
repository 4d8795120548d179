"""`lab kernels unique`, `launches` and `gantt`: from a run or from bare traces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lab.rooms.kernels.catalogue.launches import Catalogue
    from lab.rooms.kernels.schema import Trail

PLACE = (
    click.option(
        "-o",
        "--out",
        type=click.Path(path_type=Path),
        help="Where files go. [default: the run; for a bare trace, experiments/NAME_analysis]",
    ),
    click.option("--json", "as_json", is_flag=True, help="The table as JSON on stdout."),
    click.option(
        "-n",
        "--top",
        type=click.IntRange(min=0),
        default=20,
        show_default=True,
        help="Rows to print; all are written.",
    ),
)


def _placed(function: Any) -> Any:
    for option in reversed(PLACE):
        function = option(function)
    return function


@click.command("unique")
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--bucketed", is_flag=True, help="Without arguments and geometry in the key: a growing cache is one row."
)
@_placed
def unique(traces: tuple[Path, ...], bucketed: bool, out: Path | None, as_json: bool, top: int) -> None:
    """Distinct launches of TRACES (a RUN, or one Kineto trace a rank), with counts and times.

    Writes tables/unique_kernels.csv, signatures.json, unique_bucketed.csv, and unique_kernels.jsonl in the original
    scripts' format. Counts add up to every launch of the traces, times to their kernel time.
    """
    from lab.rooms.kernels.catalogue import files
    from lab.rooms.kernels.catalogue import launches as catalogue

    found, home = _read(traces, out)
    written = [*files.write_unique(found, home), *files.write_launches(found, home)]
    table = catalogue.bucketed(found.unique) if bucketed else found.unique
    columns = [
        "kernel",
        "class",
        "op",
        "arg_summary",
        "phase",
        "count",
        "count_per_forward",
        "dur_sum_us",
        "dur_median_us",
        "time_share",
    ]
    _show(table, [name for name in columns if name in table.columns], found, written, as_json, top)


@click.command("launches")
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@_placed
def launches(traces: tuple[Path, ...], out: Path | None, as_json: bool, top: int) -> None:
    """Every launch of TRACES with grid, block, stream, op and phase: tables/launches.jsonl, ops.jsonl, and CSV files."""
    from lab.rooms.kernels.catalogue import files

    found, home = _read(traces, out)
    written = files.write_launches(found, home)
    table = files.launch_params(found)
    table["op"] = _ops_of(found)
    table["kernel"] = _short(table["name"])
    table["grid"] = [_sizes(row) for row in table[["grid_x", "grid_y", "grid_z"]].to_numpy()]
    table["block"] = [_sizes(row) for row in table[["block_x", "block_y", "block_z"]].to_numpy()]
    _show(
        table,
        ["ts_us", "dur_us", "kernel", "category", "op", "phase", "grid", "block", "rank", "device", "stream"],
        found,
        written,
        as_json,
        top,
    )


@click.command("gantt")
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--step",
    metavar="NAME",
    help="Zoom to a forward or step: prefill, decode_3, or a profiler step's number.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Where files go. [default: the run; for a bare trace, experiments/NAME_analysis]",
)
def gantt(traces: tuple[Path, ...], step: str | None, out: Path | None) -> None:
    """Who ran when: figures/gantt.png, gantt.html (zoom, hover) and tables/gantt.csv."""
    from lab.errors import needs

    with needs("analysis"):
        from lab.rooms.kernels.catalogue import gantt as chart
        from lab.rooms.kernels.catalogue.gantt_page import write_gantt_page
        from lab.rooms.kernels.catalogue.launches import read_rank
    found = trails_of(traces)
    ranks = [read_rank(trail) for trail in found]
    bars = chart.bars_of(ranks)
    home = out or home_of(traces)
    written = [*chart.write_gantt(bars, home, step=step), write_gantt_page(bars, home, traces)]
    click.echo(f"{len(bars.row)} launches on {len(bars.rows)} rows")
    for path in written:
        click.echo(str(path))


def _read(traces: Sequence[Path], out: Path | None) -> tuple[Catalogue, Path]:
    from lab.errors import needs

    with needs("analysis"):
        from lab.rooms.kernels.catalogue.launches import read_catalogue
    return read_catalogue(trails_of(traces)), out or home_of(traces)


def home_of(traces: Sequence[Path]) -> Path:
    """Files go into a run of lab; what lab did not make is not written to."""
    from lab.core.run import Run
    from lab.core.run import home_of as home_of_folder

    if len(traces) == 1 and (Run.is_run(traces[0]) or traces[0].is_dir()):
        return home_of_folder(traces[0])
    stem = re.sub(r"(\.pt\.trace)?\.json(\.gz)?\Z", "", traces[0].name)
    return Path("experiments") / f"{stem}_analysis"


def trails_of(traces: Sequence[Path]) -> list[Trail]:
    """One trail a rank: a run's or folder's own; bare files by the rank in their name, else by their place.

    Raises MissingError for what is not there, UsageError for a file that is named twice: its launches would count twice.
    """
    from lab.errors import MissingError, UsageError
    from lab.rooms.kernels.schema import Trail, trails

    for path in traces:
        if not path.exists():
            raise MissingError("there is no such run or trace", where=path)
    if len(traces) == 1 and traces[0].is_dir():
        found = trails(traces[0])
        if not found:
            raise MissingError(
                "this folder holds no trace_rank*.json",
                where=traces[0],
                fix="name the trace files themselves, one a rank",
            )
        return found
    if any(path.is_dir() for path in traces):
        raise UsageError("one run, or trace files: not both", fix="name the runs one by one")
    if len({path.resolve() for path in traces}) < len(traces):
        raise UsageError("a trace is named twice", fix="name each rank's trace once")
    named = [re.search(r"rank[_-]?(\d+)", path.name) for path in traces]
    ranks = [int(match[1]) if match else place for place, match in enumerate(named)]
    if len(set(ranks)) < len(ranks):
        ranks = list(range(len(traces)))
    beside = {trail.trace.resolve(): trail for path in traces for trail in trails(path.parent)}
    return [
        beside.get(path.resolve()) or Trail(rank=rank, trace=path)
        for rank, path in zip(ranks, traces, strict=True)
    ]


def _ops_of(found: Catalogue) -> list[str]:
    names = {(op.rank, op.op_id): op.name for op in found.ops}
    return [names.get((one.rank, one.op_id), "") for one in found.launches]


def _short(names: Any) -> list[str]:
    from lab.recordings.names import short_name

    return [short_name(name) for name in names]


def _sizes(row: Any) -> str:
    return "" if row[0] is None or row[0] != row[0] else "×".join(str(int(one)) for one in row)


def _show(
    table: Any, columns: list[str], found: Catalogue, written: list[Path], as_json: bool, top: int
) -> None:
    if as_json:
        click.echo(table.to_json(orient="records"))
        return
    from lab.report.tables import terminal_table
    from lab.rooms.kernels.report import shortened

    click.echo(terminal_table(shortened(table[columns].head(top), 30), width=170))
    total_us = sum(one.dur_us for one in found.launches)
    click.echo(f"\n{len(table)} rows of {len(found.launches)} launches, {total_us / 1000:.3f} ms in all")
    for problem in found.problems:
        click.echo(f"! {problem}")
    for path in written:
        click.echo(str(path))
