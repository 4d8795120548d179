"""Slurm's own words: which jobs live, what became of one, and how to end them. Nothing here knows of steps."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence

from lab.errors import EngineError

LIVE = {
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "REQUEUED",
    "REQUEUE_HOLD",
    "RESIZING",
    "SIGNALING",
    "STAGE_OUT",
    "STOPPED",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
}
_FIELDS = re.compile(r"(\w+)=(\S*)")


def _ask(*command: str, fine: Collection[int] = (0,)) -> str:
    """The tool's output. Raises EngineError when it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError as error:
        raise EngineError(
            f"{command[0]} is not here: this is no Slurm login node",
            fix="run where sbatch works, or without --engine slurm",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"{command[0]} has not answered in 60 s", fix="see whether slurmctld is up: scontrol ping"
        ) from error
    if done.returncode not in fine:
        raise EngineError(
            f"{command[0]} failed: {(done.stderr or done.stdout).strip()[:300]}",
            where=" ".join(command),
            fix="see scontrol ping and sinfo",
        )
    return done.stdout


def available() -> bool:
    return shutil.which("sbatch") is not None


def states(jobs: Collection[str]) -> dict[str, str]:
    """Job or array task -> its state, for those that the controller still remembers.

    A task of an array that waits is listed within its array (`12_[3-7]`): it is PENDING. One call for all.
    """
    numbers = sorted({job.split("_")[0] for job in jobs})
    found: dict[str, str] = {}
    for start in range(0, len(numbers), 200):
        listed = _ask(
            "squeue",
            "-h",
            "-r",
            "-t",
            "all",
            "-j",
            ",".join(numbers[start : start + 200]),
            "-o",
            "%i %T",
            fine=(0, 1),
        )
        for line in listed.splitlines():
            name, _, state = line.partition(" ")
            found[name] = state
    return {job: found[job] for job in jobs if job in found}


def story(job: str) -> str:
    """How a job ended, in Slurm's words; "" when it is forgotten."""
    try:
        shown = _ask("scontrol", "-o", "show", "job", job)
    except EngineError:
        return ""
    fields = dict(_FIELDS.findall(shown))
    told = [
        f"{name} {fields[name]}"
        for name in ("JobState", "Reason", "ExitCode", "NodeList")
        if fields.get(name)
    ]
    return ", ".join(told)


def cancel(jobs: Sequence[str], *, waiting_only: bool = False) -> None:
    """End jobs; those that have ended already are no error. With `waiting_only` those that run go on."""
    which = ["--state=PENDING"] if waiting_only else []
    for start in range(0, len(jobs), 200):
        _ask("scancel", "-Q", *which, *jobs[start : start + 200], fine=(0, 1))


def node_address(nodelist: str) -> str:
    """The address of the first node of a list such as `n[1-4]`; of this machine for "localhost"."""
    if nodelist == "localhost":
        return nodelist
    first = _ask("scontrol", "show", "hostnames", nodelist).split()[0]
    fields = dict(_FIELDS.findall(_ask("scontrol", "-o", "show", "node", first)))
    return fields.get("NodeAddr") or first


def login_node() -> bool:
    """Slurm is here and this process is in no job of it: GPUs are not to be expected."""
    return available() and "SLURM_JOB_ID" not in os.environ
