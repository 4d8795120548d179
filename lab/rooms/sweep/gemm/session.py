"""What every `lab gemm` command does around its work: read the sweep, show the result."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from lab.core.run import Run
from lab.errors import StepFailed, needs
from lab.rooms.sweep.gemm.places import Report, places
from lab.rooms.sweep.layout import Selection
from lab.terminal.console import Console
from lab.terminal.findings import raise_unless_complete

MOST_PROBLEMS = 12
MOST_FILES = 4
SHOW_EVERY = 8  # traces


class Session:
    """One command on one sweep: where it writes, how many processes it uses, how it shows progress."""

    def __init__(
        self,
        sweep: Path,
        *,
        out: Path | None,
        in_place: bool,
        quiet: bool,
        as_json: bool,
        workers: int | None = None,
        require: str | None = None,
    ) -> None:
        self.places = places(sweep, out, in_place=in_place)
        self.workers = workers or num_workers()
        self.console = Console(quiet=quiet)
        self.progress = show_progress(self.console.detail)
        self._as_json = as_json
        self._require = require
        self._incomplete: list[str] = []

    def read(self, *, salvage: bool = False, workbooks: bool = False, only: Selection | None = None) -> Any:
        """The sweep in memory; a configuration that is only in the manifest has a row too, unless only some
        are wanted."""
        with needs("analysis"):
            from lab.rooms.sweep.expected import expected_rows
            from lab.rooms.sweep.gemm.reading.data import read_sweep

        sweep = self.places.sweep
        data = read_sweep(
            sweep,
            workers=self.workers,
            workbooks=self.places.analysis if workbooks else None,
            salvage=salvage,
            expected=expected_rows(Run.open(sweep) if Run.is_run(sweep) and not only else None),
            progress=self.progress,
            only=only,
        )
        self._incomplete = data.incomplete
        return data

    def judged(self, report: Report) -> Report:
        """The result with what the recordings lack among its problems, each sentence once."""
        return replace(report, problems=list(dict.fromkeys([*report.problems, *self._incomplete])))

    def finish(self, report: Report) -> None:
        """Show the result. Raises StepFailed for what is missing; with --require for any lossy recording."""
        report = self.judged(report)
        finish(report, self.places.analysis, as_json=self._as_json)
        if self._require == "complete":
            raise_unless_complete(self._incomplete, self.places.sweep)


def finish(result: Report, folder: Path, *, as_json: bool) -> None:
    """Show what was found and written. Raises StepFailed if something that was requested is missing."""
    if as_json:
        parts = {"findings": result.findings, "lacking": result.missing, "problems": result.problems}
        click.echo(msgspec.json.encode({**parts, "files": [str(path) for path in result.files]}).decode())
    else:
        for finding in result.findings:
            click.echo(f"- {finding}")
        for problem in result.problems[:MOST_PROBLEMS]:
            click.echo(f"note: {problem}")
        if len(result.problems) > MOST_PROBLEMS:
            click.echo(f"note: and {len(result.problems) - MOST_PROBLEMS} more (--json lists all)")
        for line in _by_folder(result.files):
            click.echo(line)
    if result.missing:
        raise StepFailed(
            "the analysis is incomplete:\n" + "\n".join(f"  {line}" for line in result.missing),
            location=folder,
            fix="the rest is analysed; add what is missing and repeat the command",
        )


def _by_folder(files: list[Path]) -> list[str]:
    """One line per file, or one per folder that received many."""
    folders: dict[Path, list[Path]] = {}
    for path in files:
        folders.setdefault(path.parent, []).append(path)
    lines = []
    for folder, paths in folders.items():
        few = len(paths) <= MOST_FILES
        lines += [f"wrote {path}" for path in paths] if few else [f"wrote {len(paths)} files into {folder}"]
    return lines


def show_progress(say: Callable[[str], None]) -> Callable[[int, int, Path], None]:
    """Say how many traces are read, every SHOW_EVERY of them."""

    def show(count: int, total: int, path: Path) -> None:
        if count == total or count % SHOW_EVERY == 0:
            say(f"  {count} of {total}: {path.name}")

    return show


def num_workers() -> int:
    return min(8, len(os.sched_getaffinity(0)))
