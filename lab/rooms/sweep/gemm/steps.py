"""The pipeline as steps, one after another on traces that are read once."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lab.core.words import first_few, plural
from lab.errors import BadDataError, LabError, MissingError
from lab.recordings.cache import load_trace
from lab.recordings.pool import map_traces
from lab.rooms.sweep.gemm.merge import SUFFIXES, MergeOptions, merge_ranks
from lab.rooms.sweep.gemm.places import Places
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.gemm.report import Report
from lab.rooms.sweep.gemm.variance.cause import write_causes
from lab.rooms.sweep.gemm.variance.overlap import write_overlap
from lab.rooms.sweep.gemm.variance.top import write_timestamps, write_variance
from lab.rooms.sweep.gemm.workbooks.write import write_reports
from lab.rooms.sweep.layout import configs_of

OF_STEPS = (".xlsx", ".csv", ".png", *SUFFIXES.values())


def run_all(where: Places, data: SweepData, merging: MergeOptions, *, top_k: int = 5) -> Report:
    """Every step on a sweep that `read_sweep` gave; a step that fails is in `missing`, the others go on.

    Files of an earlier analysis that this one does not write again are named in `problems`.
    """
    out = where.analysis
    before = _stamps(where)
    done = _run(
        {
            "report": lambda: write_reports(data, out),
            "variance": lambda: write_variance(data, out, top_k=top_k),
            "timestamps": lambda: write_timestamps(data, out, top_k=top_k),
            "overlap": lambda: write_overlap(data, out, top_k=top_k),
            "cause": lambda: write_causes(data, out),
            "plots": lambda: _plots(out, top_k),
            "merge": lambda: merge_ranks(where, merging),
        }
    )
    after, written = _stamps(where), set(done.files)
    old = sorted(path for path, stamp in before.items() if after.get(path) == stamp and path not in written)
    if old:
        names = first_few([os.path.relpath(path, where.home) for path in old])
        done.problems.append(
            f"not of this analysis but left from before: {plural(len(old), 'file')}: {names}"
        )
    return done


def _stamps(where: Places) -> dict[Path, tuple[int, int]]:
    """Inode and time of each file with an ending that the steps write, in their folders."""
    folders = dict.fromkeys((where.analysis, where.merged))
    files = [path for folder in folders for path in folder.rglob("*") if path.name.endswith(OF_STEPS)]
    files = [path for path in files if path.is_file() and not path.is_relative_to(where.cache)]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def _plots(out: Path, top_k: int) -> Report:
    # matplotlib takes 0.3 s to load; the other steps draw nothing.
    from lab.rooms.sweep.gemm.plots import draw_plots

    return draw_plots(out, top_k=top_k)


def overlap_and_cause(data: SweepData, out: Path, *, top_k: int = 5) -> Report:
    """Which collectives ran beside the extreme instances, and what a collective does to a GEMM's time."""
    return _run(
        {
            "overlap": lambda: write_overlap(data, out, top_k=top_k),
            "cause": lambda: write_causes(data, out),
        }
    )


def read_part(where: Places, number: int, *, workers: int, salvage: bool = False) -> Report:
    """One task's share of a spread sweep: read one configuration's traces into the cache, then merge them."""
    configs = configs_of(where.sweep)
    if not 0 <= number < len(configs):
        raise MissingError(
            f"no configuration {number}: the sweep has {len(configs)}, counted from 0", where=where.sweep
        )
    paths = [trace.path for trace in configs[number].traces]
    results = map_traces(partial(_into_cache, cache=where.cache, salvage=salvage), paths, workers=workers)
    unread = [result.what for result in results if isinstance(result, LabError)]
    done = merge_ranks(where, MergeOptions(salvage=salvage, workers=1), only=number)
    return Report(files=done.files, missing=[*unread, *done.missing], problems=done.problems)


def num_parts(sweep: Path) -> int:
    return len(configs_of(sweep))


def _run(steps: dict[str, Callable[[], Report]]) -> Report:
    """All steps as one report; a sentence that several of them give is in it once."""
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
        return Report(missing=[f"{name}: {error.what}" + (f" ({error.where})" if error.where else "")])


def _into_cache(path: Path, cache: Path, salvage: bool) -> None:
    load_trace(path, cache=cache, salvage=salvage)
