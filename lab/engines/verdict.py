"""From how a process ended to an Outcome in words: pure, the same for every engine."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from lab.core.step import Outcome, Status

# What frameworks print when memory ends; torch on CUDA, HIP and CPU, and torchrun about a killed worker.
GPU_OOM = re.compile(
    r"(CUDA|HIP) out of memory|OutOfMemoryError|hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY"
)
HOST_OOM = re.compile(
    r"\bMemoryError\b|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|oom-kill"
)
WORKER_KILLED = re.compile(r"exitcode\s*:\s*-9\b|Signal 9 \(SIGKILL\) received by PID")
_CAUSE = re.compile(r"^(?:\[[^\]]*\]:?\s*)?[\w.]*(?:Error|Exception|Interrupt|Failure)\b.*")


def judge(
    *,
    exit_code: int,
    seconds: float,
    started_utc: str,
    tail: Sequence[str],
    stopped_by: str | None = None,
    limit_s: float | None = None,
    oom_kills: int = 0,
    limit_hit: bool | None = None,
    missing: Sequence[str] = (),
    peak_mem_bytes: int | None = None,
) -> Outcome:
    """Say what became of a step.

    `stopped_by` is "user", "timeout" or "stall" when lab itself ended it; `oom_kills` is how many processes the
    kernel's out-of-memory killer took meanwhile; `limit_hit` says whether the container's own memory limit killed one
    (None: there is no such limit, or the engine does not tell); `missing` are expected files that are not there.
    """
    status, reason = _status(exit_code, "\n".join(tail), stopped_by, limit_s, oom_kills, limit_hit, missing)
    return Outcome(
        status=status,
        reason=reason,
        exit_code=exit_code,
        seconds=round(seconds, 3),
        started_utc=started_utc,
        tail=tuple(tail),
        peak_mem_bytes=peak_mem_bytes,
    )


def _status(
    code: int,
    text: str,
    stopped_by: str | None,
    limit_s: float | None,
    oom_kills: int,
    limit_hit: bool | None,
    missing: Sequence[str],
) -> tuple[Status, str]:
    if stopped_by == "user":
        return Status.interrupted, "stopped by the user"
    if stopped_by == "timeout":
        return Status.timeout, f"ran past its limit of {limit_s:g} s and was stopped"
    if stopped_by == "stall":
        return Status.timeout, f"printed nothing for {limit_s:g} s and was stopped"
    if code == 0:
        return _finished(oom_kills, limit_hit, missing)
    if limit_hit:
        return Status.oom, "the container hit its memory limit: the kernel killed a process of the step"
    killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL) or WORKER_KILLED.search(text)
    if GPU_OOM.search(text):
        return Status.oom, "the GPU ran out of memory"
    if HOST_OOM.search(text) or (killed and oom_kills):
        return Status.oom, "the host ran out of memory: the kernel killed a process of the step"
    if killed:
        return Status.failed, f"a process of the step was killed by SIGKILL, not by lab{_guess(limit_hit)}"
    return Status.failed, f"{_how(code)}{_cause(text)}"


def _guess(limit_hit: bool | None) -> str:
    return (
        ": often the out-of-memory killer; see dmesg"
        if limit_hit is None
        else " and not by its memory limit: somebody's kill, or the host's memory ended; see dmesg"
    )


def _finished(oom_kills: int, limit_hit: bool | None, missing: Sequence[str]) -> tuple[Status, str]:
    child = "a child process hit the container's memory limit and was killed" if limit_hit else ""
    if missing:
        return Status.failed, f"exited with 0 but left no {', '.join(missing)}" + (child and f"; {child}")
    if child:
        return Status.ok, f"exited with 0, though {child}"
    if oom_kills:
        return (
            Status.ok,
            "exited with 0, though the kernel's out-of-memory killer struck on this host meanwhile",
        )
    return Status.ok, ""


def _how(code: int) -> str:
    number = -code if code < 0 else code - 128 if code > 128 else 0
    try:
        return f"ended by {signal.Signals(number).name}" if number else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"


def _cause(text: str) -> str:
    """The line that names the error, if one does: the last that looks like a raised exception."""
    lines = [line.strip() for line in text.splitlines() if _CAUSE.match(line.strip())]
    specific = [line for line in lines if "ChildFailedError" not in line]
    return f": {(specific or lines)[-1][:300]}" if lines else ""
