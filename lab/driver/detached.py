"""A run that goes on without the process that began it, and its output read from another terminal."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lab.core.options import Options
from lab.core.run import Run
from lab.engines import engine_class
from lab.engines.output import LineSplitter
from lab.errors import EngineError, MissingError

DRIVER_LOG = "driver.log"
POLL_S, ASK_QUEUE_S = 0.3, 3.0  # a scheduler is asked less often
BEGIN_S = 60.0  # in which the new driver takes the run's lock, on a loaded machine


def detach(root: Path, options: Options) -> str:
    """Start a driver that resumes the run in a session of its own; -> what was started.

    It keeps no terminal and no pipe of this process, so it outlives a logout.
    """
    log = root / DRIVER_LOG
    flags = ["--jobs", str(options.jobs), "--analysis", options.analysis, "--host-lab", options.host_lab]
    flags += ["--wait" if options.wait else "--no-wait"]
    with log.open("ab") as file:
        driver = subprocess.Popen(
            [sys.executable, "-m", "lab", "run", *flags, "--resume", str(root.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    run, deadline = Run.open(root), time.monotonic() + BEGIN_S
    while run.driver_pid() is None and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if driver.poll():
        words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:]
        raise EngineError("the detached driver ended at once:\n" + "\n".join(words), location=log)
    return f"driven by process {driver.pid}, which goes on when you log out (its lines: {log})"


def goes_on(run: Run) -> bool:
    """Whether a driver or jobs of Slurm work on this run."""
    return run.driver_pid() is not None or engine_class(run.manifest.engine).has_jobs(run)


def follow_logs(run: Run, step: str | None, follow: bool) -> Iterator[str]:
    """The lines of the run's driver, or of its steps' logs one after the other; of one step alone."""
    paths = _paths(run, step)
    splitters = {path: LineSplitter() for path in paths}
    offsets = dict.fromkeys(paths, 0)
    while True:
        is_last = not (follow and goes_on(run))
        for path in paths:
            chunk, offsets[path] = _since(path, offsets[path])
            yield from splitters[path].feed(chunk)
        if is_last:
            break
        time.sleep(POLL_S if run.driver_pid() is not None else ASK_QUEUE_S)
    for path in paths:
        yield from splitters[path].flush()


def _paths(run: Run, step: str | None) -> list[Path]:
    steps = [record.step for record in run.manifest.steps if step in (None, record.step.name)]
    if not steps:
        names = ", ".join(record.step.name for record in run.manifest.steps)
        raise MissingError(f"the run has no step {step!r}", location=run.root, fix=f"one of: {names}")
    if step is None and (run.root / DRIVER_LOG).exists():
        return [run.root / DRIVER_LOG]
    return [run.log(one_step) for one_step in steps]


def _since(path: Path, offset: int) -> tuple[bytes, int]:
    """What was written behind `offset`; from the beginning of a log that a new attempt has begun again."""
    try:
        with path.open("rb") as file:
            start = offset if path.stat().st_size >= offset else 0
            file.seek(start)
            chunk = file.read()
    except FileNotFoundError:
        return b"", 0
    return chunk, start + len(chunk)
