"""The pipeline as steps, one after another on traces that are read once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from lab.core.words import first_few, plural
from lab.errors import BadDataError, MissingError
from lab.rooms.sweep.gemm.merge import SUFFIXES, MergeOptions, merge_ranks
from lab.rooms.sweep.gemm.places import Places
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.gemm.report import Report
from lab.rooms.sweep.gemm.variance.cause import write_causes
from lab.rooms.sweep.gemm.variance.groups import groups
from lab.rooms.sweep.gemm.variance.overlap import write_overlap
from lab.rooms.sweep.gemm.variance.top import write_variance
from lab.rooms.sweep.gemm.workbooks.write import write_reports
from lab.rooms.sweep.tables import SETTING

CACHE = ".cache"  # what lab itself remembers of the last analysis
OF_STEPS = (".xlsx", ".csv", ".png", *SUFFIXES.values())


def run_all(places: Places, data: SweepData, merging: MergeOptions, *, top_k: int = 5) -> Report:
    """Run every step on a sweep that `read_sweep` gave; a step that fails is in `missing`, the others go on.

    Files of an earlier analysis that this one does not write again are named in `problems`.
    """
    out = places.analysis
    old_stamps = _stamps(places)
    report = _run(
        {
            "report": lambda: write_reports(data, out),
            "variance": lambda: run_variance(data, out, top_k=top_k),
            "merge": lambda: merge_ranks(places, merging),
        }
    )
    new_stamps, written = _stamps(places), set(report.files)
    stale = sorted(
        path for path, stamp in old_stamps.items() if new_stamps.get(path) == stamp and path not in written
    )
    if stale:
        names = first_few([os.path.relpath(path, places.home) for path in stale])
        report.problems.append(
            f"not of this analysis but left from before: {plural(len(stale), 'file')}: {names}"
        )
    return report


def run_variance(data: SweepData, out: Path, *, top_k: int = 5) -> Report:
    """Write which GEMMs vary, when their extremes ran, what overlapped them, the causes, and the plots.

    Plots of the tables that `write_reports` writes are drawn where these are there. Raises MissingError
    without any GEMM that an op launched.
    """
    groups(data)  # raises here, so that the want of GEMMs is said once and not by every step
    return _run(
        {
            "variance": lambda: write_variance(data, out, top_k=top_k),
            "overlap": lambda: write_overlap(data, out, top_k=top_k),
            "cause": lambda: write_causes(data, out),
            "plots": lambda: _plots(data, out, top_k),
        }
    )


def _stamps(places: Places) -> dict[Path, tuple[int, int]]:
    """Inode and time of each file with an ending that the steps write, in their folders."""
    folders = dict.fromkeys((places.analysis, places.merged))
    files = [path for folder in folders for path in folder.rglob("*") if path.name.endswith(OF_STEPS)]
    files = [path for path in files if path.is_file() and path.parent.name != CACHE]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def _plots(data: SweepData, out: Path, top_k: int) -> Report:
    # matplotlib takes 0.3 s to load; the other steps draw nothing.
    from lab.rooms.sweep.gemm.plots import draw_plots

    return draw_plots(out, pd.DataFrame(data.rows["timeline"], columns=[*SETTING, "rank"]), top_k=top_k)


def _run(steps: dict[str, Callable[[], Report]]) -> Report:
    """Run all steps for one report; a sentence that several of them give is in it once."""
    reports = [_attempt(name, step) for name, step in steps.items()]
    return Report(
        files=list(dict.fromkeys(path for report in reports for path in report.files)),
        missing=list(dict.fromkeys(text for report in reports for text in report.missing)),
        problems=list(dict.fromkeys(text for report in reports for text in report.problems)),
        findings=list(dict.fromkeys(text for report in reports for text in report.findings)),
    )


def _attempt(name: str, step: Callable[[], Report]) -> Report:
    try:
        return step()
    except (BadDataError, MissingError) as error:
        return Report(
            missing=[f"{name}: {error.problem}" + (f" ({error.location})" if error.location else "")]
        )
