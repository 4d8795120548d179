"""Slurm's own commands: which jobs live, how one ended, how to cancel."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Sequence
from typing import NamedTuple

from lab.core.words import printable
from lab.errors import EngineError

# States of a job that has not ended for good.
LIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "RESIZING", "SIGNALING", "STAGE_OUT"}
LIVE |= {"STOPPED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED", "STOPPED"}
# How the states of nodes begin that start nothing; a * behind means that the node does not respond.
UNUSABLE = ("down", "drain", "fail", "error", "maint", "power", "reboot", "future", "no_respond")
JOBS_PER_CALL = 200
_FIELDS = re.compile(r"(\w+)=(\S*)")


class Job(NamedTuple):
    """A job as the queue lists it; `nodes`: those that it asks for by name, `reason`: why it waits."""

    state: str
    nodes: str
    partition: str
    reason: str


class NodeState(NamedTuple):
    name: str
    state: str
    reason: str

    @property
    def usable(self) -> bool:
        return not self.state.endswith("*") and not self.state.startswith(UNUSABLE)

    @property
    def text(self) -> str:
        state = self.state.rstrip("*$~#!%@^-+")
        silent = " and does not respond" if self.state.endswith("*") else ""
        reason = "" if self.reason in ("", "none") else f' ("{printable(self.reason)[:120]}")'
        return f"node {printable(self.name)} is {printable(state)}{silent}{reason}"


def array_of(job: str) -> str:
    return job.split("_")[0]


def living(jobs: Collection[str]) -> list[str]:
    """Those of these jobs that have not ended."""
    return [name for name, job in listed(jobs).items() if job.state in LIVE]


def listed(jobs: Collection[str]) -> dict[str, Job]:
    """Job or array task -> what the queue says of it, for those that the controller still remembers.

    A waiting task is listed within its array (`12_[3-7]`): it is PENDING. One call for at most 200 jobs.
    """
    numbers = sorted({array_of(job) for job in jobs if job})
    jobs_by_id: dict[str, Job] = {}
    for start in range(0, len(numbers), JOBS_PER_CALL):
        asked = ",".join(numbers[start : start + JOBS_PER_CALL])
        text = _call("squeue", "-h", "-r", "-t", "all", "-j", asked, "-o", "%i|%T|%n|%P|%r", accepted=(0, 1))
        for line in text.splitlines():
            name, *fields = line.split("|", 4)
            jobs_by_id[name] = Job(*[*fields, "", "", "", ""][:4])
    return {job: jobs_by_id[job] for job in jobs if job in jobs_by_id}


def node_states(nodes: str, partition: str) -> list[NodeState]:
    """Of these nodes (`n1,n[4-7]`), else of a partition's; none where Slurm does not know them."""
    filters = ("-n", nodes) if nodes else ("-p", partition)
    try:
        text = _call("sinfo", "-h", "-N", *filters, "-o", "%N|%T|%E")
    except EngineError:
        return []
    lines = dict.fromkeys(text.splitlines())  # a node is listed once per partition
    return [NodeState(*line.split("|", 2)) for line in lines if line.count("|") >= 2]


def version() -> str:
    return _call("sinfo", "--version").strip()


def describe_end(job: str) -> str:
    """How a job ended, in Slurm's words; "" if the controller no longer knows it."""
    try:
        shown = _call("scontrol", "-o", "show", "job", job)
    except EngineError:
        return ""
    fields = dict(_FIELDS.findall(shown))
    names = ("JobState", "Reason", "ExitCode", "NodeList")
    return ", ".join(f"{name} {fields[name]}" for name in names if fields.get(name))


def cancel(jobs: Sequence[str], *, waiting_only: bool = False) -> None:
    """Cancel jobs, or with `waiting_only` those that have not begun. Ended ones are skipped."""
    filters = ["--state=PENDING"] if waiting_only else []
    for start in range(0, len(jobs), JOBS_PER_CALL):
        _call("scancel", "-Q", *filters, *jobs[start : start + JOBS_PER_CALL], accepted=(0, 1))


def node_address(nodelist: str) -> str:
    """The address of the first node of a list such as `n[1-4]`; of this machine for "localhost"."""
    if nodelist == "localhost":
        return nodelist
    node = _call("scontrol", "show", "hostnames", nodelist).split()[0]
    fields = dict(_FIELDS.findall(_call("scontrol", "-o", "show", "node", node)))
    return fields.get("NodeAddr") or node


def _call(*command: str, accepted: Collection[int] = (0,)) -> str:
    """The command's output. Raises EngineError when it is not installed or fails."""
    try:
        completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError as error:
        raise EngineError(
            f"{command[0]} is not installed: this is not a Slurm login node",
            fix="run where sbatch works, or without --engine slurm",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"{command[0]} has not answered in 60 s", fix="see whether slurmctld is up: scontrol ping"
        ) from error
    if completed.returncode not in accepted:
        raise EngineError(
            f"{command[0]} failed: {(completed.stderr or completed.stdout).strip()[:300]}",
            location=" ".join(command),
            fix="see scontrol ping and sinfo",
        )
    return completed.stdout
