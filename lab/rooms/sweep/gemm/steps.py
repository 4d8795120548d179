"""The pipeline as steps, one after another on traces that are read once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lab.errors import BadDataError, MissingError
from lab.rooms.sweep.gemm.data import SweepData
from lab.rooms.sweep.gemm.merge import MergeOptions, merge_ranks
from lab.rooms.sweep.gemm.places import Places, Report
from lab.rooms.sweep.gemm.reports import write_reports
from lab.rooms.sweep.gemm.variance.cause import write_causes
from lab.rooms.sweep.gemm.variance.top import usable, write_variance


def run_all(places: Places, data: SweepData, merging: MergeOptions, *, top_k: int = 5) -> Report:
    """Run every step on a sweep in memory; a step that fails is in `missing`, the others go on."""
    out = places.analysis
    return _run(
        {
            "report": lambda: write_reports(data, out),
            "variance": lambda: run_variance(data, out, top_k=top_k),
            "merge": lambda: merge_ranks(places, merging),
        }
    )


def run_variance(data: SweepData, out: Path, *, top_k: int = 5) -> Report:
    """Write which GEMMs vary, when their extremes ran, what overlapped them, the causes, and the plots.

    Raises MissingError without any GEMM that an op launched.
    """
    usable(data)  # raises here, so that the want of GEMMs is said once and not by every step
    return _run(
        {
            "variance": lambda: write_variance(data, out, top_k=top_k),
            "cause": lambda: write_causes(data, out),
        }
    )


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
