"""What the job after a detached run's steps calls: collect what they left, then analyse."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Literal

from lab.core.options import Options
from lab.core.run import Run
from lab.core.stop import Stop
from lab.driver.analysis import analyse_run
from lab.driver.execute import StepRunner
from lab.driver.gather import gather
from lab.driver.show import raise_for_steps
from lab.engines import engine_class
from lab.errors import LabError
from lab.rooms import room
from lab.terminal.console import Console
from lab.terminal.findings import raise_for_findings, show_findings


def finish_run(run_dir: str, analysis: Literal["auto", "host", "none"]) -> None:
    """The last job of a detached run. Its exit code is lab's."""
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
        runner = StepRunner(run, engine, watchers, Stop(), lambda _: contextlib.nullcontext(True))
        runner.take_up()
        for step in run.open_steps():
            runner.finish(step, engine.lost(run, step))
        gather(run, engine)
        findings = analyse_run(run, engine, options, console)
    show_findings(run.root, findings, options)
    raise_for_steps(run)
    raise_for_findings(findings, run.root)
