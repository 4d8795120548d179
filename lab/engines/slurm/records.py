"""The files in a run's `.slurm` folder: what a task gets, and what it leaves."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lab.core.files import write_atomic
from lab.core.gpu import Gpu
from lab.core.manifest import ImageRecord
from lab.core.step import Outcome

FOLDER = ".slurm"


class Ticket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a task gets besides the run folder's manifest."""

    run_dir: str
    step: str
    attempt: int
    vendor: str = "none"
    image: str | None = None
    container: str = "none"  # "none" | "docker" | "pyxis" | "apptainer"
    image_id: str | None = None  # the content that the run's earlier steps had; None: none has run
    mounts: tuple[str, ...] = ()  # of --mount


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a task leaves behind: at its start without an outcome, at its end with one."""

    attempt: int
    job: str
    node: str
    host: str
    started_utc: str
    gpus: tuple[Gpu, ...] = ()
    image: ImageRecord | None = None  # as the node's engine knows it
    outcome: Outcome | None = None


class Jobs(msgspec.Struct, kw_only=True):
    """Which job runs which step of a run: `.slurm/jobs.json`."""

    of_step: dict[str, str] = {}
    attempt: dict[str, int] = {}
    analysis: str = ""  # the last job of a run that was left to Slurm


def trace_path(root: Path, step: str, node_rank: int = 0) -> Path:
    return root / FOLDER / (f"{step}.json" if node_rank == 0 else f"{step}.node{node_rank}.json")


def read_trace(path: Path) -> Trace | None:
    """None if there is none yet; a file is never half written."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Trace)
    except FileNotFoundError:
        return None


def stop_flag(root: Path) -> Path:
    """The file that asks the running steps of a run to end."""
    return root / FOLDER / "stop"


def read_jobs(root: Path) -> Jobs:
    try:
        return msgspec.json.decode((root / FOLDER / "jobs.json").read_bytes(), type=Jobs)
    except FileNotFoundError:
        return Jobs()


def write_jobs(root: Path, jobs: Jobs) -> None:
    write_atomic(root / FOLDER / "jobs.json", msgspec.json.encode(jobs))
