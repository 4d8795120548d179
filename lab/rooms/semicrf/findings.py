"""Where the three pages begin: a run of the room -> tables, figures and report.html."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.words import plural
from lab.rooms.semicrf.analyze import read_checks, read_examination, read_trainings
from lab.rooms.semicrf.report.checks import checks
from lab.rooms.semicrf.report.examination import examination
from lab.rooms.semicrf.report.trainings import trainings


def analyse_semicrf(out: Path, run: Run, progress: Callable[[str], None]) -> Findings:
    """Tables, figures and report.html into `out`."""
    command = run.manifest.config.get("command")
    progress(f"  {command}: {plural(len(run.manifest.steps), 'step')}")
    if command == "diagnose":
        return examination(read_examination(run), out, run)
    if command == "check":
        return checks(*read_checks(run), out, run)
    return trainings(read_trainings(run), out, run)
