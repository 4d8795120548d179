"""Name and labels of a container, by which a later process finds it, to follow it again or remove it."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from lab.core.gpu import Gpu
from lab.core.run import Run
from lab.core.step import Step

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
    created_utc: str
    driver_alive: bool
    slurm_job: str = ""  # the job whose task started it

    @property
    def running(self) -> bool:
        return self.state in ALIVE


def make_labels(run: Run, step: Step, gpus: Sequence[Gpu], ref: str) -> dict[str, str]:
    return {
        "lab.run": run.manifest.id,
        "lab.run_dir": str(run.root.resolve()),
        "lab.step": step.name,
        "lab.gpus": ",".join(gpu.uuid for gpu in gpus),
        "lab.fingerprint": fingerprint(run, step),
        "lab.image": ref,
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
        created_utc=datetime.fromtimestamp(row["Created"], timezone.utc).isoformat(),
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
