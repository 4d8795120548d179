"""`lab kernels unique`, `launches` and `gantt`: from a run or from bare traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lab.rooms.kernels.catalogue.build import Catalogue
from lab.rooms.kernels.catalogue.sources import home_of, trails_of

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
    from lab.rooms.kernels.catalogue import unique as distinct

    found, home = _read(traces, out)
    written = [*files.write_unique(found, home), *files.write_launches(found, home)]
    table = distinct.bucketed(found.unique) if bucketed else found.unique
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
        from lab.rooms.kernels.catalogue.gantt.bars import bars_of
        from lab.rooms.kernels.catalogue.gantt.page import write_gantt_page
        from lab.rooms.kernels.catalogue.gantt.tables import write_gantt
        from lab.rooms.kernels.catalogue.rank import read_rank
    found = trails_of(traces)
    ranks = [read_rank(trail) for trail in found]
    bars = bars_of(ranks)
    home = out or home_of(traces)
    written = [*write_gantt(bars, home, step=step), write_gantt_page(bars, home, traces)]
    click.echo(f"{len(bars.row)} launches on {len(bars.rows)} rows")
    for path in written:
        click.echo(str(path))


def _read(traces: Sequence[Path], out: Path | None) -> tuple[Catalogue, Path]:
    from lab.errors import needs

    with needs("analysis"):
        from lab.rooms.kernels.catalogue.build import read_catalogue
    return read_catalogue(trails_of(traces)), out or home_of(traces)


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
    from lab.rooms.kernels.report.terminal import shortened

    click.echo(terminal_table(shortened(table[columns].head(top), 30), width=170))
    total_us = sum(one.dur_us for one in found.launches)
    click.echo(f"\n{len(table)} rows of {len(found.launches)} launches, {total_us / 1000:.3f} ms in all")
    for problem in found.problems:
        click.echo(f"! {problem}")
    for path in written:
        click.echo(str(path))
