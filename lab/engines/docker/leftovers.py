"""Containers that outlived their driver: found by their labels, stopped, collected or removed.

A container survives a killed driver by design: its result is not lost, and these functions keep it from being forgotten.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from docker.errors import NotFound

from lab.core.gpu import Gpu
from lab.core.run import Run
from lab.engines.docker.client import Daemon, connect
from lab.engines.docker.container import remove
from lab.engines.docker.errors import Context, speaking
from lab.errors import BadDataError, EngineError, MissingError

ALIVE = ("running", "paused", "restarting")


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """One container of lab, as its labels tell it."""

    container: str
    name: str
    run: str
    run_dir: str
    step: str
    state: str  # created, running, paused, exited, dead
    gpus: tuple[str, ...]
    fingerprint: str
    created_utc: str
    driver_alive: bool
    slurm_job: str = ""  # whose task started it

    @property
    def running(self) -> bool:
        return self.state in ALIVE


def labels(run: Run, step: str, fingerprint: str, gpus: Sequence[Gpu], ref: str) -> dict[str, str]:
    """What a later process must know to take a container up again or to put it away."""
    pid = os.getpid()
    return {
        "lab.run": run.manifest.id,
        "lab.run_dir": str(run.root.resolve()),
        "lab.step": step,
        "lab.gpus": ",".join(gpu.uuid for gpu in gpus),
        "lab.fingerprint": fingerprint,
        "lab.image": ref,
        "lab.host": socket.gethostname(),
        "lab.pid": str(pid),
        "lab.pid_started": _started(pid),
        "lab.slurm_job": os.environ.get("SLURM_JOB_ID", ""),
    }


def leftovers(
    run_id: str | None = None,
    *,
    run_dir: Path | None = None,
    step: str | None = None,
    daemon: Daemon | None = None,
) -> list[Leftover]:
    """All containers of lab on this engine, or those of one run (two runs in different folders may share an id) or
    step; those of living drivers too. Oldest first."""
    daemon = daemon or connect()
    wanted = {
        "lab.run": run_id,
        "lab.run_dir": str(run_dir.resolve()) if run_dir else None,
        "lab.step": step,
    }
    filters = [
        "lab.run_dir",
        *(f"{label}={value}" for label, value in wanted.items() if value is not None),
    ]
    with speaking(Context(endpoint=daemon.endpoint)):
        rows = daemon.client.containers(all=True, filters={"label": filters})
    return sorted((_leftover(row) for row in rows), key=lambda one: (one.created_utc, one.name))


def stop_run(
    run_id: str, grace_s: float = 10.0, *, run_dir: Path | None = None, daemon: Daemon | None = None
) -> list[Leftover]:
    """End all containers of a run; -> those it found. Where the driver lives, it collects and removes its own."""
    daemon = daemon or connect()
    found = leftovers(run_id, run_dir=run_dir, daemon=daemon)
    if found:
        with ThreadPoolExecutor(len(found), thread_name_prefix="lab-stop") as pool:
            list(pool.map(partial(_put_away, daemon, grace_s), found))
    return found


def reap(
    *, running: bool = False, slurm_job: str | None = None, daemon: Daemon | None = None
) -> list[Leftover]:
    """Remove the containers that nobody will collect; -> these. Still running ones only when asked.

    slurm_job: only those of this job, running or not: for a site's Epilog, when all of the job's processes are dead.
    """
    daemon = daemon or connect()
    removed = []
    for one in leftovers(daemon=daemon):
        if slurm_job is not None and one.slurm_job != slurm_job:
            continue
        if (one.running and not (running or slurm_job)) or not _forsaken(one):
            continue
        _put_away(daemon, 10.0, one)
        removed.append(one)
    return removed


def _put_away(daemon: Daemon, grace_s: float, one: Leftover) -> None:
    with speaking(Context(endpoint=daemon.endpoint, step=one.step, run_dir=one.run_dir)):
        try:
            if one.running:
                daemon.client.stop(one.container, timeout=max(1, round(grace_s)))
        except NotFound:
            return  # its driver was quicker
    if not one.driver_alive and (trouble := remove(daemon.client, one.container)):
        raise EngineError(trouble)


def _forsaken(one: Leftover) -> bool:
    """Nobody waits for it: its driver is dead, or its run has its outcome already, or is gone."""
    if not one.driver_alive:
        return True
    try:
        steps = Run.open(Path(one.run_dir)).manifest.steps
    except MissingError:
        return True
    except BadDataError:
        return False  # what cannot be read is not judged
    return all(record.outcome is not None for record in steps if record.step.name == one.step)


def _leftover(row: Mapping[str, Any]) -> Leftover:
    said = row["Labels"]
    return Leftover(
        container=row["Id"],
        name=row["Names"][0].lstrip("/"),
        state=row["State"],
        run=said.get("lab.run", ""),
        run_dir=said["lab.run_dir"],
        step=said.get("lab.step", ""),
        fingerprint=said.get("lab.fingerprint", ""),
        gpus=tuple(filter(None, said.get("lab.gpus", "").split(","))),
        driver_alive=_driver_alive(said),
        slurm_job=said.get("lab.slurm_job", ""),
        created_utc=datetime.fromtimestamp(row["Created"], timezone.utc).isoformat(),
    )


def _driver_alive(said: Mapping[str, str]) -> bool:
    """True also where that cannot be known: a driver in another container or on another host has its own pids."""
    if said.get("lab.host") != socket.gethostname():
        return True
    pid = said.get("lab.pid", "")
    return pid.isdigit() and _started(int(pid)) == said.get("lab.pid_started") != ""


def _started(pid: int) -> str:
    """When the process began, in clock ticks: pids are used again, a pid with its start is not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[19]
