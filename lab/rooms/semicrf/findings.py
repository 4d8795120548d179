"""The analysis of a run, or of comparisons that lab did not make: which page belongs to which command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lab.core.run import Run
from lab.report.provenance import provenance
from lab.rooms.semicrf import report
from lab.rooms.semicrf.analyze import read_checks, read_examination, read_recordings, read_trainings


def analyse_semicrf(
    folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]
) -> report.Findings:
    """Tables, figures and report.html into `out`."""
    if run is None:
        return report.trainings(
            read_recordings(folder),
            out,
            f"Comparison {folder.resolve().name}",
            provenance(folder, None),
            run=None,
        )
    command = run.manifest.config.get("command")
    where = provenance(folder, run.manifest)
    title = f"Semi-CRF {command} {run.manifest.id}"
    progress(f"  {command}: {len(run.manifest.steps)} steps")
    if command == "diagnose":
        return report.examination(read_examination(run), out, title, where, run)
    if command == "check":
        return report.checks(*read_checks(run), out, title, where)
    return report.trainings(read_trainings(run), out, title, where, run=run)
