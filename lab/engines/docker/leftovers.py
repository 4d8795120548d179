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
    run_id: str | None = None,
    *,
    run_dir: Path | None = None,
    step: str | None = None,
    daemon: Daemon | None = None,
) -> list[Leftover]:
    """All containers of lab on this engine, or those of one run or step, oldest first.

    Containers of living drivers are listed too. Two runs in different folders may share an id.
    """
    daemon = daemon or connect()
    wanted = {
        "lab.run": run_id,
        "lab.run_dir": str(run_dir.resolve()) if run_dir else None,
        "lab.step": step,
    }
    filters = ["lab.run_dir", *(f"{label}={value}" for label, value in wanted.items() if value is not None)]
    with translated(Context(endpoint=daemon.endpoint)):
        rows = daemon.client.containers(all=True, filters={"label": filters})
    return sorted((read_labels(row) for row in rows), key=lambda one: (one.created_utc, one.name))


def stop_run(
    run_id: str, grace_s: float = GRACE_S, *, run_dir: Path | None = None, daemon: Daemon | None = None
) -> list[Leftover]:
    """End all containers of a run; -> those that were found. A living driver collects and removes its own."""
    daemon = daemon or connect()
    found = leftovers(run_id, run_dir=run_dir, daemon=daemon)
    if found:
        with ThreadPoolExecutor(len(found), thread_name_prefix="lab-stop") as pool:
            list(pool.map(partial(_end, daemon, grace_s), found))
    return found


def reap(
    *, running: bool = False, slurm_job: str | None = None, daemon: Daemon | None = None
) -> list[Leftover]:
    """Remove the containers that nobody will collect; -> those removed. Running steps only if asked for.

    slurm_job: only those of this job, running or not. For a site's Epilog, when all processes of the job
    are dead.
    """
    daemon = daemon or connect()
    removed = []
    for one in leftovers(daemon=daemon):
        if slurm_job is not None and one.slurm_job != slurm_job:
            continue
        if (one.running and not (running or slurm_job)) or not _abandoned(one):
            continue
        _end(daemon, GRACE_S, one)
        removed.append(one)
    return removed


def _end(daemon: Daemon, grace_s: float, one: Leftover) -> None:
    with translated(Context(endpoint=daemon.endpoint, step=one.step, run_dir=one.run_dir)):
        try:
            if one.running:
                daemon.client.stop(one.container, timeout=max(1, round(grace_s)))
        except NotFound:
            return  # its driver was quicker
    if not one.driver_alive and (problem := remove(daemon.client, one.container)):
        raise EngineError(problem)


def _abandoned(one: Leftover) -> bool:
    """Whether nobody waits for it: its driver is dead, its run has the step's outcome already, or is gone."""
    if not one.driver_alive:
        return True
    if not one.run:
        return False  # its driver reads which lab an image holds
    try:
        steps = Run.open(Path(one.run_dir)).manifest.steps
    except MissingError:
        return True
    except BadDataError:
        return False  # an unreadable manifest proves nothing
    return all(record.outcome is not None for record in steps if record.step.name == one.step)
