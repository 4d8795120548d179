"""`lab kernels unique` and `gantt`: from a run or from bare traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from lab.errors import StepFailed, needs
from lab.rooms.kernels.catalogue.sources import home_of, trails_of
from lab.rooms.kernels.cli import CAPTURE, INDUCTOR, OUT, TABLE_OUTPUT, TRACES
from lab.terminal.findings import REQUIRE, raise_for_lacks

if TYPE_CHECKING:
    from lab.recordings.lacks import Lack
    from lab.rooms.kernels.catalogue.build import Catalogue
    from lab.rooms.kernels.catalogue.rank import RankData

_UNIQUE = (
    "kernel class op op_rule arg_summary phase count count_per_forward dur_sum_us dur_median_us time_share"
)
_LAUNCHES = "ts_us dur_us kernel category op op_rule layer phase grid block rank device stream"


@click.command("unique")
@TRACES
@CAPTURE
@INDUCTOR
@click.option(
    "--launches", is_flag=True, help="Every launch instead, with grid, block, stream, op and phase."
)
@TABLE_OUTPUT
@REQUIRE
def unique(
    traces: tuple[Path, ...],
    captures: tuple[Path, ...],
    inductor: tuple[Path, ...],
    launches: bool,
    out: Path | None,
    as_json: bool,
    top: int,
    require: str | None,
) -> None:
    """Distinct launches of TRACES (a RUN, or recordings of any format), with counts and times.

    Writes tables/unique_kernels.csv, signatures.json, unique_bucketed.csv, and unique_kernels.jsonl in the
    original scripts' format; compiled_kernels.csv for what torch.compile made. Counts sum to all launches of
    the traces, times to their kernel time. With --launches it writes tables/launches.jsonl and ops.jsonl, and
    CSV files of parameters and counts.
    """
    catalogue, home = _read(traces, captures, out, inductor)
    table, paths = _write_launches(catalogue, home) if launches else _write_unique(catalogue, home)
    if not as_json:
        columns = (_LAUNCHES if launches else _UNIQUE).split()
        table = table[[name for name in columns if name in table.columns]]
    _show(table, catalogue, paths, as_json, top)
    _raise_for(catalogue.ranks, require)


def _write_unique(catalogue: Catalogue, home: Path) -> tuple[Any, list[Path]]:
    """Write the files of the distinct launches -> their table and the files."""
    from lab.rooms.kernels.catalogue import files

    paths = files.write_unique(catalogue, home)
    catalogue.problems += files.compiled_sentences(files.compiled_kernels(catalogue))
    return catalogue.unique, paths


def _write_launches(catalogue: Catalogue, home: Path) -> tuple[Any, list[Path]]:
    """Write the files of every launch -> their table and the files."""
    from lab.recordings.names import short_name
    from lab.rooms.kernels.catalogue import files

    paths = files.write_launches(catalogue, home)
    table = files.launch_params(catalogue)
    table["kernel"] = [short_name(name) for name in table["name"]]
    for name in ("grid", "block"):
        table[name] = [_sizes(row) for row in table[[f"{name}_{axis}" for axis in "xyz"]].to_numpy()]
    return table, paths


@click.command("gantt")
@TRACES
@CAPTURE
@INDUCTOR
@click.option(
    "--step",
    metavar="NAME",
    help="Zoom to a forward or step: prefill, decode_3, or a profiler step's number.",
)
@OUT
@REQUIRE
def gantt(
    traces: tuple[Path, ...],
    captures: tuple[Path, ...],
    inductor: tuple[Path, ...],
    step: str | None,
    out: Path | None,
    require: str | None,
) -> None:
    """Who ran when: figures/gantt.png, gantt.html (zoom, hover) and tables/gantt.csv."""
    from lab.core.words import plural

    with needs("analysis"):
        from lab.recordings.integrity.words import integrity_lines
        from lab.rooms.kernels.catalogue.gantt import bars_of, write_gantt, write_gantt_page
    catalogue, home = _read(traces, captures, out, inductor)
    bars = bars_of(catalogue)
    written = [
        *write_gantt(bars, home, step=step, bound=catalogue.signatures.bound),
        write_gantt_page(bars, catalogue, home),
    ]
    click.echo(f"{plural(len(bars.row), 'launch')} on {plural(len(bars.rows), 'row')}")
    click.echo("\n".join(integrity_lines(catalogue.lacks)))
    for path in written:
        click.echo(str(path))
    for problem in catalogue.problems:
        click.echo(f"! {problem}")
    _raise_for(catalogue.ranks, require)


def _read(
    traces: Sequence[Path], captures: Sequence[Path], out: Path | None, inductor: Sequence[Path] = ()
) -> tuple[Catalogue, Path]:
    with needs("analysis"):
        from lab.rooms.kernels.catalogue.build import read_catalogue
    return read_catalogue(trails_of(traces), captures, inductor), out or home_of(traces)


def _raise_for(ranks: Sequence[RankData], require: str | None) -> None:
    """Raise StepFailed, once all is written, for a hole in a recording, or a capture that did not serve."""
    from lab.recordings.lacks import holes

    # The file with a hole is where to look; another may only be in doubt.
    torn = sorted(ranks, key=lambda rank: (not holes(rank.lacks), not rank.lacks))
    raise_for_lacks(_named_lacks(ranks), torn[0].path, require=require)
    refused = [text for rank in ranks if rank.replayed is not None for text in rank.replayed.refused]
    if refused:
        raise StepFailed(
            "written, but incomplete:\n" + "\n".join(f"  {line}" for line in dict.fromkeys(refused)),
            location=ranks[0].path,
        )


def _named_lacks(ranks: Sequence[RankData]) -> list[Lack]:
    """What the recordings lack; of several files each sentence names its own."""
    if len({rank.path for rank in ranks}) == 1:
        return [lack for rank in ranks for lack in rank.lacks]
    return [
        msgspec.structs.replace(lack, text=f"{rank.path}: {lack.text}")
        for rank in ranks
        for lack in rank.lacks
    ]


def _sizes(row: Any) -> str:
    unknown = row[0] is None or row[0] != row[0]
    return "" if unknown else "×".join(str(int(one)) for one in row)


def _show(table: Any, catalogue: Catalogue, written: list[Path], as_json: bool, top: int) -> None:
    from lab.recordings.integrity.words import bound, integrity_lines, marked

    if as_json:
        click.echo(table.to_json(orient="records"))
        doubts = [integrity_lines(catalogue.lacks)[0], *(f"! {problem}" for problem in catalogue.problems)]
        click.echo("\n".join(doubts), err=True)
        return
    from lab.core.words import plural
    from lab.report.tables import terminal_table
    from lab.rooms.kernels.analyze import shortened

    click.echo(terminal_table(shortened(table.head(top), 30), width=170))
    total_us = sum(launch.dur_us for launch in catalogue.launches)
    rows, launches = plural(len(table), "row"), plural(len(catalogue.launches), "launch")
    at_least = marked(bound(catalogue.lacks, "gpu"))
    time = f"{total_us / 1000:.3f} ms"
    time = f"{time} of CPU time" if catalogue.times_are_cpus else f"{at_least}{time}"
    click.echo(f"\n{rows} of {at_least}{launches}, {time} in all")
    click.echo(integrity_lines(catalogue.lacks)[0])
    for problem in catalogue.problems:
        click.echo(f"! {problem}")
    for path in written:
        click.echo(str(path))
