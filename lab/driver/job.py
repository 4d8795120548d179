"""Collect what steps left: versions for the manifest and, after a detached run, outcomes and analysis."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from lab.core.files import read_json
from lab.core.options import Options
from lab.core.run import Run
from lab.core.stop import Stop
from lab.driver.analysis import analyse_run
from lab.driver.execute import StepRunner
from lab.driver.report import seen_env
from lab.driver.show import show_error, show_result
from lab.engines import engine_class
from lab.engines.base import Engine
from lab.errors import LabError
from lab.rooms import room
from lab.terminal.console import Console


def finish_run(folder: str, analysis: Literal["auto", "host", "none"]) -> None:
    """Record the outcomes of a run whose jobs have ended, then analyse it; with lab's exit codes."""
    options, console = Options(quiet=True, analysis=analysis), Console(quiet=True)
    try:
        run = Run.open(Path(folder))
        _, engine = engine_class(run.manifest.engine).restore(run, options)
        with run.locked():
            runner = StepRunner(run, engine, [room(run.manifest.room).watcher(run)], Stop())
            runner.take_up()
            for step in run.open_steps():
                runner.finish(step, engine.lost(run, step))
            gather(run, engine)
            findings = analyse_run(run, engine, options, console)
        show_result(run, findings, options)
    except LabError as error:
        raise SystemExit(show_error(error)) from error


def gather(run: Run, engine: Engine) -> None:
    """Add to the manifest the versions and GPUs that the steps saw."""
    for record in run.manifest.steps:
        path = run.folder(record.step) / "environment.json"
        versions = read_json(path, _Environment, path.name).versions if path.exists() else {}
        run.manifest.versions |= {name: str(text) for name, text in versions.items() if text is not None}
    run.manifest.gpus = engine.gpus_seen(run)
    run.manifest.env = seen_env(run.manifest)
    run.manifest.image = engine.image_seen(run)
    run.save()


class _Environment(msgspec.Struct):
    """What a workload left in its folder about its software."""

    versions: dict[str, Any] = {}
