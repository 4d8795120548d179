"""One start of a command under nixnan: its environment, its log, and how it ended."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lab.core.files import write_atomic
from lab.errors import EngineError
from lab.rooms.nan.config import NixnanConfig
from lab.rooms.nan.nixnan.running.inventory import LISTED
from lab.rooms.nan.nixnan.running.preflight import scrubbed

LOG, RECORD = "nixnan.log", "nixnan.json"
CONTEXT_LINE = b"Initializing GPU context"
LINE_INFO_CRASH = b"LINE_INFO"
POLL_S = 0.2


@dataclass(frozen=True)
class Job:
    """What is run under the tool, and where."""

    config: NixnanConfig
    tool: Path
    out: Path
    command: Sequence[str]
    env: Mapping[str, str]


class Attempt(msgspec.Struct, kw_only=True):
    """One start of the command. `ended` says who ended it, `attached` that the log names a GPU context."""

    mode: str  # inject | preload
    line_info: bool
    exit_code: int = 0
    seconds: float = 0.0
    log_bytes: int = 0
    attached: bool = False
    ended: str = ""


def write_lists(config: NixnanConfig, out: Path) -> None:
    """Write what the tool reads from its working directory; lists of an earlier attempt are removed."""
    for name, kernels in (
        ("kernel_whitelist.txt", config.only_kernels),
        ("kernel_blacklist.txt", config.not_kernels),
    ):
        (out / name).unlink(missing_ok=True)
        if kernels:
            write_atomic(out / name, "\n".join(kernels) + "\n")
    if config.bin_spec:
        write_atomic(out / "bin_spec.json", config.bin_spec)


def start(job: Job, mode: str, line_info: bool) -> Attempt:
    """Run the command once under the tool. On an interrupt it has a grace period to write its report."""
    log, command = (job.out / LOG).absolute(), job.command
    keep_old(log)
    began = time.monotonic()
    attempt = Attempt(mode=mode, line_info=line_info)
    program = sys.executable if command[0] == "python" else command[0]
    words = [program, *command[1:], "--root", str(Path.cwd())]
    print(f"nixnan: {job.tool} by {mode}, log {log}", flush=True)
    with interrupted() as stop:
        try:
            child = subprocess.Popen(words, cwd=job.out, env=child_env(job, mode, line_info, log))
        except OSError as error:
            raise EngineError(f"cannot start the command: {error.strerror}", location=words[0]) from error
        attempt.ended = follow(child, log, job.config, stop)
    attempt.exit_code, attempt.seconds = child.returncode, round(time.monotonic() - began, 3)
    attempt.log_bytes = log.stat().st_size if log.exists() else 0
    attempt.attached = log_holds(log, CONTEXT_LINE)
    return attempt


def child_env(job: Job, mode: str, line_info: bool, log: Path) -> dict[str, str]:
    """The environment with one way of attaching the tool, never both, and all of its flags."""
    config = job.config
    flags = {
        "SAMPLING": config.sampling,
        "LINE_INFO": int(line_info),
        "MAX_ERRORS": config.max_errors,
        "HISTOGRAM": int(config.histogram),
        "ENABLE_FUN_DETAIL": int(config.fun_detail),
    }
    attach = "CUDA_INJECTION64_PATH" if mode == "inject" else "LD_PRELOAD"
    spec = {"BIN_SPEC_FILE": str(log.with_name("bin_spec.json"))} if config.bin_spec else {}
    if config.inventory:
        spec["LOG_KERNELS"] = str(log.with_name(LISTED))
    return {
        **scrubbed(job.env),
        **{name: str(value) for name, value in flags.items()},
        attach: str(job.tool),
        **spec,
        "LOGFILE": str(log),
    }


def follow(child: subprocess.Popen[bytes], log: Path, config: NixnanConfig, stop: list[int]) -> str:
    """Wait for the child; returns who ended it: "" (itself), "signal" or "log limit"."""
    ended, deadline = "", float("inf")
    while child.poll() is None:
        if not ended and stop:
            ended = "signal"
        elif not ended and log.exists() and log.stat().st_size > config.log_limit_bytes:
            ended = "log limit"
        if ended and deadline == float("inf"):
            child.send_signal(signal.SIGINT)  # at which the tool writes its report
            deadline = time.monotonic() + config.grace_s
        if time.monotonic() > deadline or len(stop) > 1:
            child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(POLL_S)
    return ended


@contextlib.contextmanager
def interrupted() -> Iterator[list[int]]:
    """Note signals that would end this process instead of dying: the command is ended first."""
    signals: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(kind, lambda number, _frame: signals.append(number)) for kind in kinds]
    try:
        yield signals
    finally:
        for kind, handler in zip(kinds, handlers, strict=True):
            signal.signal(kind, handler)


def crashed_by_line_info(attempt: Attempt, out: Path) -> bool:
    """Whether the tool's last note names LINE_INFO, as it does before a segmentation fault."""
    return attempt.exit_code not in (0, 130) and log_holds(out / LOG, LINE_INFO_CRASH)


def log_holds(log: Path, words: bytes) -> bool:
    """Whether a line of the tool holds `words`. Logs are large, but these lines come early or never."""
    try:
        with log.open("rb") as file:
            return any(words in line for line in file if line.lstrip(b"\0").startswith(b"#nixnan"))
    except OSError:
        return False


def keep_old(log: Path) -> None:
    """Keep an earlier attempt's log under a name of its own."""
    if log.exists():
        number = 1 + sum(1 for _ in log.parent.glob("nixnan.attempt*.log"))
        log.replace(log.with_name(f"nixnan.attempt{number}.log"))
