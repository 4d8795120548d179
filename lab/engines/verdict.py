"""From how a process ended to its Outcome, the same for every engine."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lab.core.run import Run
from lab.core.step import Outcome, Status, Step
from lab.engines.output import LogWriter, last_log_lines
from lab.errors import storage_error

# What frameworks print when memory runs out; torch on CUDA, HIP and CPU, and torchrun about a killed worker.
GPU_OOM = re.compile(
    r"(CUDA|HIP) out of memory|OutOfMemoryError|hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY"
)
HOST_OOM = re.compile(
    r"\bMemoryError\b|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|oom-kill"
)
WORKER_KILLED = re.compile(r"exitcode\s*:\s*-9\b|Signal 9 \(SIGKILL\) received by PID")
_RAISED = re.compile(r"^(?:\[[^\]]*\]:?\s*)?[\w.]*(?:Error|Exception|Interrupt|Failure)\b.*")


class Cure(msgspec.Struct, frozen=True):
    """A row of cures.toml."""

    pattern: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the process of a step ended, as far as its engine can tell."""

    exit_code: int
    seconds: float
    started_utc: str
    tail: Sequence[str] = ()
    stopped_by: str | None = None  # "user", "timeout" or "stall" when lab itself ended it
    limit_s: float | None = None  # the limit that was hit
    oom_kills: int | None = None  # by the kernel on this host meanwhile; None: unknown
    limit_hit: bool | None = None  # the container's own memory limit; None: it has none, or unknown
    missing: Sequence[str] = ()  # expected files that are not there
    peak_mem_bytes: int | None = None


def outcome_of(run: Run, step: Step, log: LogWriter, ending: Ending) -> Outcome:
    """Judge a step that has ended, with its last lines. Raises StorageError if its log is incomplete."""
    if log.error is not None:
        raise storage_error(log.error, run.log(step)) from log.error
    failed = ending.exit_code != 0
    return judge(
        replace(
            ending,
            limit_s=step.stall_timeout_s if ending.stopped_by == "stall" else step.timeout_s,
            tail=[*log.tail, *(last_log_lines(run, step) if failed else [])],
            missing=() if failed else run.missing(step),
        )
    )


def judge(ending: Ending) -> Outcome:
    """Say what became of a step."""
    status, reason = _stopped_by_lab(ending) or _ended_by_itself(ending)
    return Outcome(
        status=status,
        reason=reason,
        exit_code=ending.exit_code,
        seconds=round(ending.seconds, 3),
        started_utc=ending.started_utc,
        tail=tuple(ending.tail),
        peak_mem_bytes=ending.peak_mem_bytes,
    )


def _stopped_by_lab(ending: Ending) -> tuple[Status, str] | None:
    if ending.stopped_by == "user":
        return Status.interrupted, "stopped by the user"
    if ending.stopped_by == "timeout":
        return Status.timeout, f"ran past its limit of {ending.limit_s:g} s and was stopped"
    if ending.stopped_by == "stall":
        return Status.timeout, f"printed nothing for {ending.limit_s:g} s and was stopped"
    return None


def _ended_by_itself(ending: Ending) -> tuple[Status, str]:
    code, text = ending.exit_code, "\n".join(ending.tail)
    if code == 0:
        return _exited_with_zero(ending)
    if ending.limit_hit:
        return Status.oom, "the container hit its memory limit: the kernel killed a process of the step"
    killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL) or WORKER_KILLED.search(text)
    if GPU_OOM.search(text):
        return Status.oom, "the GPU ran out of memory"
    if killed and ending.oom_kills and ending.limit_hit is False:  # engines lose the news now and then
        limit = "at its memory limit, which the engine does not report, or as the host ran out of memory"
        return Status.oom, f"the kernel killed a process of the step: {limit}"
    if HOST_OOM.search(text) or (killed and ending.oom_kills):
        return Status.oom, "the host ran out of memory: the kernel killed a process of the step"
    if killed:
        return Status.failed, f"a process of the step was killed by SIGKILL, not by lab{_suspect(ending)}"
    return Status.failed, f"{_exit_words(code)}{_error_line(text)}{_cure(text)}"


def _exited_with_zero(ending: Ending) -> tuple[Status, str]:
    child = "a child process hit the container's memory limit and was killed" if ending.limit_hit else ""
    if ending.missing:
        reason = f"exited with 0 but left no {', '.join(ending.missing)}"
        return Status.failed, f"{reason}; {child}" if child else reason
    if child:
        return Status.ok, f"exited with 0, though {child}"
    if ending.oom_kills:
        killer = "the kernel's out-of-memory killer struck on this host meanwhile"
        return Status.ok, f"exited with 0, though {killer}"
    return Status.ok, ""


def _suspect(ending: Ending) -> str:
    """What else is known of a SIGKILL that lab did not send."""
    if ending.oom_kills == 0:
        return ": from outside, as the out-of-memory killer took no process on this host meanwhile"
    own_limit = (
        ", its memory limit was hit without the engine's reporting it" if ending.limit_hit is False else ""
    )
    return f": killed from outside{own_limit}, or the host ran out of memory; see dmesg"


def _cure(text: str) -> str:
    """What to do, where the output names a fault of the machine that is known (cures.toml)."""
    rows = msgspec.toml.decode(
        Path(__file__).with_name("cures.toml").read_bytes(), type=dict[str, list[Cure]]
    )
    fix = next((row.fix for row in rows["cure"] if re.search(row.pattern, text)), "")
    return f"; {fix}" if fix else ""


def _exit_words(code: int) -> str:
    number = -code if code < 0 else code - 128 if code > 128 else 0
    try:
        return f"ended by {signal.Signals(number).name}" if number else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"


def _error_line(text: str) -> str:
    """The last line that looks like a raised exception, if there is one."""
    lines = [line.strip() for line in text.splitlines() if _RAISED.match(line.strip())]
    specific = [line for line in lines if "ChildFailedError" not in line]
    return f": {(specific or lines)[-1][:300]}" if lines else ""


def oom_kills() -> int | None:
    """How often the kernel's out-of-memory killer has struck on this host; None where /proc does not say."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    except OSError:
        return None


def oom_kills_since(earlier_kills: int | None) -> int | None:
    kills = oom_kills()
    return None if earlier_kills is None or kills is None else kills - earlier_kills
