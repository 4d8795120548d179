"""`lab gemm`: the GEMM-variance pipeline, step by step or in one go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lab.errors import needs
from lab.rooms.sweep.gemm.session import (
    COMMON,
    PLACE,
    SALVAGE,
    SELECT,
    TOP_K,
    Session,
    finish,
    num_workers,
    show_progress,
)
from lab.terminal.console import Console
from lab.terminal.findings import raise_unless_complete
from lab.terminal.group import Group
from lab.terminal.options import PATH, option, out, with_options


@click.group(cls=Group)
def gemm() -> None:
    """Why GEMM times vary: reports, variance, overlap with collectives, plots, merged traces.

    SWEEP is a sweep, a folder of ranks, or one trace. A run of lab gets its analysis inside; any other
    recording is left untouched, with results in experiments/NAME_analysis (see --out and --in-place).
    """


@gemm.command("all")
@with_options(*PLACE, TOP_K, SALVAGE, *COMMON)
def everything(sweep: Path, top_k: int, salvage: bool, **shared: Any) -> None:
    """Every step in one go, each trace read once."""
    with needs("analysis"):
        from lab.rooms.sweep.gemm.merge import MergeOptions
        from lab.rooms.sweep.gemm.steps import run_all

    session = Session(sweep, salvage=salvage, **shared)
    data = session.read(workbooks=True)
    merging = MergeOptions(salvage=salvage, workers=session.workers or num_workers())
    session.finish(run_all(session.places, data, merging, top_k=top_k))


@gemm.command()
@with_options(*PLACE, SALVAGE, *COMMON)
def report(sweep: Path, salvage: bool, **shared: Any) -> None:
    """Excel reports per rank and configuration, and timeline, collectives, effective, stragglers as CSV."""
    with needs("analysis"):
        from lab.rooms.sweep.gemm.steps import write_reports

    session = Session(sweep, salvage=salvage, **shared)
    data = session.read(workbooks=True)
    session.finish(write_reports(data, session.places.analysis))


@gemm.command()
@with_options(*PLACE, TOP_K, *SELECT, *COMMON)
def variance(sweep: Path, top_k: int, **shared: Any) -> None:
    """The GEMMs whose time varies most, when their extremes ran, what overlapped them, plots.

    Writes top5_gemm_kernels_time_variance.csv, ..._with_timestamps.csv, ..._with_collective_overlap.csv,
    gemm_groups.csv, gemm_instances.parquet, gemm_overlap_effect.csv, and plots/*.png. SWEEP may be a
    tracelens_analysis folder: its sweep is read where the traces lie beside it, else its workbooks.
    """
    with needs("analysis"):
        from lab.rooms.sweep.gemm.extract import is_analysis, write_extract
        from lab.rooms.sweep.gemm.steps import run_variance
        from lab.rooms.sweep.layout import Selection, sweep_beside

    only = Selection(*(shared.pop(name) for name in ("threads", "channels", "ranks")))
    if is_analysis(sweep) and (beside := sweep_beside(sweep)):
        sweep = beside
    elif is_analysis(sweep):
        session = Session(sweep, **shared)
        session.finish(write_extract(sweep, session.places.analysis, top_k=top_k, only=only))
        return
    session = Session(sweep, **shared)
    data = session.read(only=only if only != Selection() else None)
    session.finish(run_variance(data, session.places.analysis, top_k=top_k))


@gemm.command()
@with_options(
    *PLACE,
    option(
        "--format",
        "form",
        type=click.Choice(["json", "original"]),
        default="json",
        help="Packed JSON, or as the original sweep writes it: unpacked, [R0] before each name.",
    ),
    option("-n", "--num-ranks", type=click.IntRange(min=1), help="Only the N lowest ranks. [default: all]"),
    option("--trace-name", metavar="FILE", help="Each rank's file of this name. [default: the newest]"),
    click.option("--cpu-ops/--no-cpu-ops", default=True, help="Keep CPU operators. [default: yes]"),
    SALVAGE,
    *COMMON,
)
def merge(
    sweep: Path,
    form: str,
    num_ranks: int | None,
    trace_name: str | None,
    cpu_ops: bool,
    salvage: bool,
    **shared: Any,
) -> None:
    """All ranks of a configuration on one timeline for Perfetto -> merged_traces/.

    Written beside tracelens_analysis, as SWEEP/merged_traces; with --out, into OUT/merged_traces.
    """
    with needs("analysis"):
        from lab.rooms.sweep.gemm.merge import MergeOptions, merge_ranks

    session = Session(sweep, salvage=salvage, **shared)
    if shared["require"]:
        session.read()
    workers = session.workers or num_workers()
    options = MergeOptions(form, num_ranks, trace_name, cpu_ops, salvage, workers)
    session.finish(merge_ranks(session.places, options, progress=session.progress))


@gemm.command()
@click.argument("sweeps", nargs=-1, required=True, type=PATH, metavar="A B [C...]")
@out(
    "Folder of sweep_comparison.html and its tables, or the page FILE.html itself.",
    default=Path("experiments/comparison"),
)
@click.option(
    "-l", "--label", "labels", multiple=True, help="Name of each sweep on the page. [default: its folder]"
)
@with_options(*COMMON)
def compare(
    sweeps: tuple[Path, ...],
    out: Path,
    labels: tuple[str, ...],
    workers: int | None,
    quiet: bool,
    as_json: bool,
    require: str | None,
) -> None:
    """Two or more sweeps side by side on one page; the first is what the others are compared to."""
    with needs("analysis"):
        from lab.rooms.sweep.gemm.comparison import write_comparison

    progress = show_progress(Console(quiet=quiet).detail)
    page = out if out.suffix.lower() in (".html", ".htm") else None
    out = out.parent if page else out
    report = write_comparison(
        sweeps, out, labels=labels, workers=workers or num_workers(), progress=progress, page_path=page
    )
    finish(report, out, as_json=as_json)
    if require == "complete":
        raise_unless_complete(report.incomplete, out)
