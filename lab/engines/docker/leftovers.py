"""Containers known again by a later process: their name and labels, by which those that outlived their
driver are followed, stopped, collected or removed.

A container survives a killed driver by design, so that its result is not lost. Plans import this module, so
Docker's SDK is imported only where the engine is called.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lab.core.gpu import Gpu
from lab.core.run import Run
from lab.core.step import Step
from lab.errors import BadDataError, EngineError, MissingError

if TYPE_CHECKING:
    from lab.engines.docker.client import Daemon

GRACE_S = 10.0
ALIVE = ("running", "paused", "restarting")


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """One container of lab, as its labels describe it."""

    container: str
    name: str
    run: str
    run_dir: str
    step: str
    state: str  # created, running, paused, exited, dead
    gpus: tuple[str, ...]
    fingerprint: str
    created_s: int
    driver_alive: bool
    slurm_job: str = ""  # the job whose task started it

    @property
    def running(self) -> bool:
        return self.state in ALIVE


def make_labels(run: Run, step: Step, gpus: Sequence[Gpu]) -> dict[str, str]:
    return {
        "lab.run": run.manifest.id,
        "lab.run_dir": str(run.root.resolve()),
        "lab.step": step.name,
        "lab.gpus": ",".join(gpu.uuid for gpu in gpus),
        "lab.fingerprint": fingerprint(run, step),
        **driver_labels(),
    }


def driver_labels() -> dict[str, str]:
    """Which process waits for the container."""
    pid = os.getpid()
    return {
        "lab.host": socket.gethostname(),
        "lab.pid": str(pid),
        "lab.pid_started": _start_ticks(pid),
        "lab.slurm_job": os.environ.get("SLURM_JOB_ID", ""),
    }


def read_labels(row: Mapping[str, Any]) -> Leftover:
    """One row of the engine's list of containers."""
    labels = row["Labels"]
    return Leftover(
        container=row["Id"],
        name=row["Names"][0].lstrip("/"),
        state=row["State"],
        run=labels.get("lab.run", ""),
        run_dir=labels["lab.run_dir"],
        step=labels.get("lab.step", ""),
        fingerprint=labels.get("lab.fingerprint", ""),
        gpus=tuple(filter(None, labels.get("lab.gpus", "").split(","))),
        driver_alive=_driver_alive(labels),
        slurm_job=labels.get("lab.slurm_job", ""),
        created_s=row["Created"],
    )


def _driver_alive(labels: Mapping[str, str]) -> bool:
    """True also where that is unknown: a driver in another container or on another host has other pids."""
    if labels.get("lab.host") != socket.gethostname():
        return True
    pid = labels.get("lab.pid", "")
    return pid.isdigit() and _start_ticks(int(pid)) == labels.get("lab.pid_started") != ""


def _start_ticks(pid: int) -> str:
    """When the process began, in clock ticks: a pid is reused, a pid with its start is not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[19]


def container_name(run: Run, step: Step) -> str:
    """One name per step of a run folder; it is a lock, because the engine refuses a second such container."""
    key = hashlib.sha256(f"{run.root.resolve()}\0{step.name}".encode()).hexdigest()[:16]
    readable = re.sub(r"[^a-zA-Z0-9_.-]", "_", run.manifest.id)[:40]
    return f"lab-{readable}-{key}"


def fingerprint(run: Run, step: Step) -> str:
    return next((r.fingerprint for r in run.manifest.steps if r.step.name == step.name), "")


def leftovers(
    *, run_dir: Path | None = None, step: str | None = None, daemon: Daemon | None = None
) -> list[Leftover]:
    """All containers of lab on this engine, or those of one run or step, oldest first.

    Containers of living drivers are listed too. A run is known by its folder: two may share an id.
    """
    from lab.engines.docker.errors import Context, translated

    daemon = daemon or _connect()
    filters = [f"lab.run_dir={run_dir.resolve()}" if run_dir else "lab.run_dir"]
    filters += [f"lab.step={step}"] if step else []
    with translated(Context(endpoint=daemon.endpoint)):
        rows = daemon.client.containers(all=True, filters={"label": filters})
    return sorted(map(read_labels, rows), key=lambda left: (left.created_s, left.name))


def stop_run(run_dir: Path, grace_s: float = GRACE_S) -> list[Leftover]:
    """End all containers of a run; -> those that were found. A living driver collects and removes its own."""
    daemon = _connect()
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
    daemon = _connect()
    removed = []
    for leftover in leftovers(daemon=daemon):
        is_due = running or not leftover.running if slurm_job is None else leftover.slurm_job == slurm_job
        if is_due and _abandoned(leftover):
            _end(daemon, GRACE_S, leftover)
            removed.append(leftover)
    return removed


def _connect() -> Daemon:
    from lab.engines.docker.client import connect

    return connect()


def _end(daemon: Daemon, grace_s: float, leftover: Leftover) -> None:
    from docker.errors import NotFound

    from lab.engines.docker.container import remove
    from lab.engines.docker.errors import Context, translated

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
