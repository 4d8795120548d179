"""Containers that outlived their driver: found by their labels, stopped, collected or removed.

A container survives a killed driver by design, so that its result is not lost; these functions find it again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from docker.errors import NotFound

from lab.core.run import Run
from lab.engines.docker.client import Daemon, connect
from lab.engines.docker.container import remove
from lab.engines.docker.errors import Context, translated
from lab.engines.docker.labels import Leftover, read_labels
from lab.errors import BadDataError, EngineError, MissingError

GRACE_S = 10.0


def leftovers(
    *, run_dir: Path | None = None, step: str | None = None, daemon: Daemon | None = None
) -> list[Leftover]:
    """All containers of lab on this engine, or those of one run or step, oldest first.

    Containers of living drivers are listed too. A run is known by its folder: two may share an id.
    """
    daemon = daemon or connect()
    filters = [f"lab.run_dir={run_dir.resolve()}" if run_dir else "lab.run_dir"]
    filters += [f"lab.step={step}"] if step else []
    with translated(Context(endpoint=daemon.endpoint)):
        rows = daemon.client.containers(all=True, filters={"label": filters})
    return sorted(map(read_labels, rows), key=lambda left: (left.created_utc, left.name))


def stop_run(run_dir: Path, grace_s: float = GRACE_S) -> list[Leftover]:
    """End all containers of a run; -> those that were found. A living driver collects and removes its own."""
    daemon = connect()
    containers = leftovers(run_dir=run_dir, daemon=daemon)
    if containers:
        with ThreadPoolExecutor(len(containers), thread_name_prefix="lab-stop") as pool:
            list(pool.map(partial(_end, daemon, grace_s), containers))
    return containers


def reap(*, running: bool = False, slurm_job: str | None = None) -> list[Leftover]:
    """Remove the containers that no driver will collect, running ones only if asked for; -> those removed.

    slurm_job: only those of this job, running or not. For a site's Epilog, when all processes of the job
    are dead.
    """
    daemon = connect()
    removed = []
    for leftover in leftovers(daemon=daemon):
        is_due = running or not leftover.running if slurm_job is None else leftover.slurm_job == slurm_job
        if is_due and _abandoned(leftover):
            _end(daemon, GRACE_S, leftover)
            removed.append(leftover)
    return removed


def _end(daemon: Daemon, grace_s: float, leftover: Leftover) -> None:
    with translated(Context(endpoint=daemon.endpoint, step=leftover.step, run_dir=leftover.run_dir)):
        try:
            if leftover.running:
                daemon.client.stop(leftover.container, timeout=max(1, round(grace_s)))
        except NotFound:
            return  # its driver was quicker
    if not leftover.driver_alive and (problem := remove(daemon.client, leftover.container)):
        raise EngineError(problem)


def _abandoned(leftover: Leftover) -> bool:
    """Whether no driver waits for it: its own is dead, the run has the step's outcome, or the run is gone."""
    if not leftover.driver_alive:
        return True
    if not leftover.run:
        return False  # its driver reads which lab an image holds
    try:
        steps = Run.open(Path(leftover.run_dir)).manifest.steps
    except MissingError:
        return True
    except BadDataError:
        return False  # an unreadable manifest proves nothing
    return all(record.outcome is not None for record in steps if record.step.name == leftover.step)
