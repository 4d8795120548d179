"""What `lab gemm` and `lab ranks` commands do around their work: options, reading, showing the result."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.core.run import Run
from lab.errors import StepFailed, needs
from lab.rooms.sweep.gemm import Report, places
from lab.rooms.sweep.layout import Selection
from lab.terminal.console import Console
from lab.terminal.findings import REQUIRE, raise_unless_complete
from lab.terminal.options import (
    ONE_OR_MORE,
    PATH,
    Decorator,
    IntList,
    as_json,
    option,
    out,
    print_json,
    quiet,
    with_options,
)

if TYPE_CHECKING:
    from lab.rooms.sweep.ranks.read import Setting

IN_PLACE = click.option(
    "--in-place", is_flag=True, help="Write into the recording's folder even if lab did not make it."
)
WORKERS = click.option(
    "-w", "--workers", type=ONE_OR_MORE, help="Processes. [default: one per CPU, at most 8]"
)
SALVAGE = click.option("--salvage", is_flag=True, help="Use the readable part of truncated traces.")
QUIET = quiet()
JSON = as_json("Files, findings and what is missing")
TOP_K = option("-k", "--top-k", type=ONE_OR_MORE, default=5, help="GEMMs per trace in the list.")
SELECT: list[Decorator] = [
    option(f"--{name}", type=IntList(0), help=f"Only these {name}. [default: all]")
    for name in ("threads", "channels", "ranks")
]
PLACE: list[Decorator] = [
    click.argument("sweep", type=PATH),
    out(
        "Analysis folder. [default: SWEEP/tracelens_analysis for a run of lab, "
        "experiments/NAME_analysis/tracelens_analysis for any other recording]"
    ),
    IN_PLACE,
]
COMMON: list[Decorator] = [WORKERS, QUIET, JSON, REQUIRE]
RANKS: Decorator = with_options(
    out("Where files go. [default: FOLDER/ranks for a run of lab, else experiments/NAME_analysis/ranks]"),
    *(IN_PLACE, SALVAGE, WORKERS, QUIET, JSON),
)
MOST_PROBLEMS = 12
MOST_FILES = 4
SHOW_EVERY = 8  # traces


class Session:
    """One `lab gemm` or `lab ranks` command: where it writes, how it reads, what the recordings lack."""

    def __init__(
        self,
        folder: Path,
        *,
        out: Path | None,
        in_place: bool,
        quiet: bool,
        as_json: bool,
        workers: int | None = None,
        salvage: bool = False,
        require: str | None = None,
    ) -> None:
        self.out, self.as_json, self.salvage, self.workers = out, as_json, salvage, workers
        self.places = places(folder, out, in_place=in_place)
        self.progress = show_progress(Console(quiet=quiet).detail)
        self._require = require
        self._incomplete: list[str] = []

    @property
    def rank_folder(self) -> Path:
        """Where files about ranks go."""
        return self.out or self.places.home / "ranks"

    def read(self, *, workbooks: bool = False, only: Selection | None = None) -> Any:
        """The sweep in memory; a configuration that is only in the manifest has a row too, unless only some
        are wanted."""
        with needs("analysis"):
            from lab.rooms.sweep.gemm.data import read_sweep
            from lab.rooms.sweep.journal import expected_runs

        sweep = self.places.sweep
        data = read_sweep(
            sweep,
            workers=self.workers or num_workers(),
            workbooks=self.places.analysis if workbooks else None,
            salvage=self.salvage,
            planned=expected_runs(Run.open(sweep) if Run.is_run(sweep) and not only else None),
            progress=self.progress,
            only=only,
        )
        self._incomplete = data.incomplete
        return data

    def settings(self, folder: Path, *, ranks: re.Pattern[str] | None = None) -> list[Setting]:
        """The account of every setting below a folder."""
        with needs("analysis"):
            from lab.rooms.sweep.ranks.read import read_settings

        workers = self.workers or min(2, num_workers())
        return read_settings(
            folder, ranks=ranks, workers=workers, salvage=self.salvage, progress=self.progress
        )

    def finish(self, report: Report) -> None:
        """Show the result and, once each, what the recordings lack.

        Raises StepFailed for what is missing; with --require for any lossy recording.
        """
        problems = list(dict.fromkeys([*report.problems, *self._incomplete]))
        finish(replace(report, problems=problems), self.places.analysis, as_json=self.as_json)
        if self._require == "complete":
            raise_unless_complete(self._incomplete, self.places.sweep)


def finish(result: Report, folder: Path, *, as_json: bool) -> None:
    """Show what was found and written. Raises StepFailed if something that was requested is missing."""
    if as_json:
        parts = {"findings": result.findings, "lacking": result.missing, "problems": result.problems}
        print_json({**parts, "files": [str(path) for path in result.files]})
    else:
        for finding in result.findings:
            click.echo(f"- {finding}")
        for problem in result.problems[:MOST_PROBLEMS]:
            click.echo(f"note: {problem}")
        if len(result.problems) > MOST_PROBLEMS:
            click.echo(f"note: and {len(result.problems) - MOST_PROBLEMS} more (--json lists all)")
        folders: dict[Path, list[Path]] = {}
        for path in result.files:
            folders.setdefault(path.parent, []).append(path)
        for parent, paths in folders.items():  # one line per file, or per folder that received many
            many = [f"wrote {len(paths)} files into {parent}"] if len(paths) > MOST_FILES else []
            click.echo("\n".join(many or [f"wrote {path}" for path in paths]))
    raise_for_missing(result.missing, "analysis", folder)


def raise_for_missing(missing: list[str], subject: str, folder: Path | None = None) -> None:
    """Raise StepFailed where a result is there, but something known is missing from it."""
    if missing:
        raise StepFailed(
            f"the {subject} is incomplete:\n" + "\n".join(f"  {line}" for line in missing),
            location=folder,
            fix="the rest is done; add what is missing and repeat the command",
        )


def show_progress(say: Callable[[str], None]) -> Callable[[int, int, Path], None]:
    """Say how many traces are read, every SHOW_EVERY of them."""

    def show(count: int, total: int, path: Path) -> None:
        if count == total or count % SHOW_EVERY == 0:
            say(f"  {count} of {total}: {path.name}")

    return show


def num_workers() -> int:
    return min(8, len(os.sched_getaffinity(0)))
