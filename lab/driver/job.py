"""Collect what steps left: versions for the manifest and, after a detached run, outcomes and analysis."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import msgspec

from lab.core.files import read_json
from lab.core.options import Options
from lab.core.run import Run
from lab.core.stop import Stop
from lab.driver.analysis import analyse_run
from lab.driver.execute import StepRunner
from lab.driver.show import show_result
from lab.engines import engine_class
from lab.engines.base import Engine
from lab.errors import LabError
from lab.rooms import room
from lab.terminal.console import Console


def finish_run(run_dir: str, analysis: Literal["auto", "host", "none"]) -> None:
    """Run as the last job of a detached run, with lab's exit codes."""
    try:
        collect(Path(run_dir), analysis)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from error


def collect(folder: Path, analysis: Literal["auto", "host", "none"]) -> None:
    """Record the outcomes of a run whose jobs have all ended, then analyse it. Runs no step."""
    run = Run.open(folder)
    options, console = Options(quiet=True, analysis=analysis), Console(quiet=True)
    _, engine = engine_class(run.manifest.engine).restore(run, options)
    with run.locked():
        watchers = [room(run.manifest.room).watcher(run)]
        runner = StepRunner(run, engine, watchers, Stop())
        runner.take_up()
        for step in run.open_steps():
            runner.finish(step, engine.lost(run, step))
        gather(run, engine)
        findings = analyse_run(run, engine, options, console)
    show_result(run, findings, options)


def gather(run: Run, engine: Engine) -> None:
    """Add to the manifest the versions and GPUs that the steps saw."""
    for record in run.manifest.steps:
        run.manifest.versions.update(_versions_of(run.folder(record.step) / "environment.json"))
    run.manifest.gpus = engine.gpus_seen(run)
    run.save()


class _Environment(msgspec.Struct):
    """What a workload left in its folder about its software."""

    versions: dict[str, Any] = {}


def _versions_of(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    versions = read_json(path, _Environment, path.name).versions
    return {name: str(value) for name, value in versions.items() if value is not None}
