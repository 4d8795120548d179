"""`lab kernels unique`, `launches` and `gantt`: from a run or from bare traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.errors import BadDataError, needs
from lab.rooms.kernels.catalogue.sources import home_of, trails_of
from lab.rooms.kernels.options import OUT, TABLE_OUTPUT, TRACES
from lab.terminal.integrity import REQUIRE, raise_for_lacks

if TYPE_CHECKING:
    from lab.rooms.kernels.catalogue.build import Catalogue

_UNIQUE = "kernel class op arg_summary phase count count_per_forward dur_sum_us dur_median_us time_share"
_LAUNCHES = "ts_us dur_us kernel category op phase grid block rank device stream"


@click.command("unique")
@TRACES
@click.option(
    "--bucketed", is_flag=True, help="Without arguments and geometry in the key: a growing cache is one row."
)
@TABLE_OUTPUT
@REQUIRE
def unique(
    traces: tuple[Path, ...], bucketed: bool, out: Path | None, as_json: bool, top: int, require: str | None
) -> None:
    """Distinct launches of TRACES (a RUN, or one Kineto trace per rank), with counts and times.

    Writes tables/unique_kernels.csv, signatures.json, unique_bucketed.csv, and unique_kernels.jsonl in the
    original scripts' format. Counts sum to all launches of the traces, times to their kernel time.
    """
    found, home = _read(traces, out)
    from lab.rooms.kernels.catalogue import files
    from lab.rooms.kernels.catalogue.unique import bucketed as without_arguments

    written = [*files.write_unique(found, home), *files.write_launches(found, home)]
    table = without_arguments(found.unique) if bucketed else found.unique
    table = table[[name for name in _UNIQUE.split() if name in table.columns]] if not as_json else table
    _show(table, found, written, as_json, top)
    raise_for_lacks(found.lacks, traces[0], require=require)


@click.command("launches")
@TRACES
@TABLE_OUTPUT
@REQUIRE
def launches(
    traces: tuple[Path, ...], out: Path | None, as_json: bool, top: int, require: str | None
) -> None:
    """Every launch of TRACES with grid, block, stream, op and phase.

    Writes tables/launches.jsonl and ops.jsonl, and CSV files of parameters and counts.
    """
    found, home = _read(traces, out)
    from lab.recordings.names import short_name
    from lab.rooms.kernels.catalogue import files

    written = files.write_launches(found, home)
    table = files.launch_params(found)
    table["op"] = _ops_of(found)
    table["kernel"] = [short_name(name) for name in table["name"]]
    for name in ("grid", "block"):
        table[name] = [_sizes(row) for row in table[[f"{name}_{axis}" for axis in "xyz"]].to_numpy()]
    _show(table if as_json else table[_LAUNCHES.split()], found, written, as_json, top)
    raise_for_lacks(found.lacks, traces[0], require=require)


@click.command("gantt")
@TRACES
@click.option(
    "--step",
    metavar="NAME",
    help="Zoom to a forward or step: prefill, decode_3, or a profiler step's number.",
)
@OUT
@REQUIRE
def gantt(traces: tuple[Path, ...], step: str | None, out: Path | None, require: str | None) -> None:
    """Who ran when: figures/gantt.png, gantt.html (zoom, hover) and tables/gantt.csv."""
    from lab.core.words import plural

    with needs("analysis"):
        from lab.recordings.integrity.words import integrity_lines
        from lab.rooms.kernels.catalogue.gantt.bars import bars_of
        from lab.rooms.kernels.catalogue.gantt.page import write_gantt_page
        from lab.rooms.kernels.catalogue.gantt.tables import write_gantt
        from lab.rooms.kernels.catalogue.rank import read_rank
    ranks = [read_rank(trail) for trail in trails_of(traces)]
    bars, lacks = bars_of(ranks), [lack for rank in ranks for lack in rank.trace.lacks]
    if not len(bars.row):
        raise BadDataError("the trace holds neither kernels nor ops", where=traces[0])
    home = out or home_of(traces)
    written = [*write_gantt(bars, home, step=step), write_gantt_page(bars, home, traces, lacks)]
    click.echo(f"{plural(len(bars.row), 'launch')} on {plural(len(bars.rows), 'row')}")
    click.echo("\n".join(integrity_lines(lacks)))
    for path in written:
        click.echo(str(path))
    raise_for_lacks(lacks, traces[0], require=require)


def _read(traces: Sequence[Path], out: Path | None) -> tuple[Catalogue, Path]:
    with needs("analysis"):
        from lab.rooms.kernels.catalogue.build import read_catalogue
    return read_catalogue(trails_of(traces)), out or home_of(traces)


def _ops_of(found: Catalogue) -> list[str]:
    names = {(op.rank, op.op_id): op.name for op in found.ops}
    return [names.get((one.rank, one.op_id), "") for one in found.launches]


def _sizes(row: Any) -> str:
    unknown = row[0] is None or row[0] != row[0]
    return "" if unknown else "×".join(str(int(one)) for one in row)


def _show(table: Any, found: Catalogue, written: list[Path], as_json: bool, top: int) -> None:
    if as_json:
        click.echo(table.to_json(orient="records"))
        return
    from lab.core.words import plural
    from lab.recordings.integrity.words import bound, integrity_lines, marked
    from lab.report.tables import terminal_table
    from lab.rooms.kernels.report.terminal import shortened

    click.echo(terminal_table(shortened(table.head(top), 30), width=170))
    total_us = sum(one.dur_us for one in found.launches)
    rows, launches = plural(len(table), "row"), plural(len(found.launches), "launch")
    at_least = marked(bound(found.lacks, "gpu"))
    click.echo(f"\n{rows} of {at_least}{launches}, {at_least}{total_us / 1000:.3f} ms in all")
    click.echo(integrity_lines(found.lacks)[0])
    for problem in found.problems:
        click.echo(f"! {problem}")
    for path in written:
        click.echo(str(path))
