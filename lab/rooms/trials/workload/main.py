"""Run the command once, judge it, and say how many more trials it takes.

A trial that lab ends leaves no row: it runs again when the run is resumed, and is counted once. So does one
that Slurm requeues after a warning. One under which its node went down is a failure, and runs no more.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

import msgspec

import lab
from lab.core.content import EXPECTED, REPORT
from lab.core.files import read_or_none, write_atomic
from lab.core.gpu import GIVEN, HOST
from lab.core.run import LOG
from lab.errors import LabError
from lab.gpus.selection import MASKS
from lab.rooms.trials.config import (
    LEFT,
    NOT_RUN,
    RESULT,
    Cell,
    Trial,
    TrialsConfig,
    read_settings,
    read_trials,
    seed_of,
    words_of,
    write_trial,
)
from lab.rooms.trials.failure import CANNOT_RUN, Reader, parse, shell_code
from lab.rooms.trials.progress import progress, why_not
from lab.rooms.trials.workload.effects import APPLY, EFFECTS, effect_of
from lab.workload.guard import adopt_orphans, descendants, kill_descendants
from lab.workload.hook import hooked

LONGEST_LINE = 1 << 20  # characters judged at a time
MOST_LOG_BYTES = 64 << 20  # of a trial's output in its log; all of it is judged
GRACE_S = 5.0
HELPERS_S = 2.0  # in which what a command started ends with it by itself
CANNOT_START = 127
ATTEMPT = "attempt.json"


class Stopped(Exception):
    """lab was asked to end this trial."""


class Attempt(msgspec.Struct, frozen=True):
    """A start of this trial, on disk until it has a row. ended: lab, or Slurm, asked it to end."""

    number: int
    host: str
    boot: str
    requeues: int
    ended: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.rooms.trials.workload")
    for name, kind in {"config": Path, "cell": str, "trial": int, "order": int, "out": Path}.items():
        parser.add_argument(f"--{name}", required=True, type=kind)
    parser.add_argument("--cwd", help="where the command runs [default: here]")
    args = parser.parse_args(argv)
    try:
        config = read_settings(args.config)
        cell = next(cell for cell in config.cells if cell.name == args.cell)
        (args.out / RESULT).unlink(missing_ok=True)
        reason = why_not(config, cell.name, read_trials(args.out.parent))
        # Where the driver starts steps itself, it asks before.
        row = _row(config, cell, args, NOT_RUN, reason) if reason else _trial(config, cell, args)
        write_trial(args.out, row)
        if row.verdict != NOT_RUN:
            print(f"trial {cell.name} {args.trial}: {row.verdict}{f' ({row.reason})' if row.reason else ''}")
            print(progress(config, read_trials(args.out.parent)))
    except Stopped:
        return 128 + signal.SIGINT
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def callers_environment() -> dict[str, str]:
    """This process's environment without what makes a step import lab's copy."""
    env = dict(os.environ)
    if env.pop(EXPECTED, None):
        root = str(Path(lab.__file__).parent.parent)
        paths = [path for path in env.pop("PYTHONPATH", "").split(":") if path and path != root]
        env.update({"PYTHONPATH": ":".join(paths)} if paths else {})
    env.pop(REPORT, None)
    return env


def environment(config: TrialsConfig, cell: Cell, trial: int, folder: Path) -> dict[str, str]:
    """The caller's environment and the cell's; settings are made, and seen to have an effect, inside."""
    seed = str(seed_of(config, trial, cell))
    names = {"LAB_TRIAL": str(trial), "LAB_TRIAL_CELL": cell.name, "LAB_TRIAL_SEED": seed}
    env = {**callers_environment(), **names, **cell.env}
    if not cell.settings and not cell.read_by:
        return env
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    words = json.dumps({"out": str(folder), "settings": cell.settings, "read_by": cell.read_by})
    return hooked({**env, EFFECTS: words}, APPLY)


def _trial(config: TrialsConfig, cell: Cell, args: argparse.Namespace) -> Trial:
    reader = Reader(parse(config.fail), config.step_time)
    started, began = datetime.now(timezone.utc).isoformat(timespec="milliseconds"), time.monotonic()
    witnesses = args.out.resolve() / "effects"
    env = environment(config, cell, args.trial, witnesses)
    # As cells name it; a container has a name of its own.
    host = env.get("SLURMD_NODENAME") or env.get(HOST) or platform.node()
    attempt, died = begin_attempt(args.out, host, env)
    row = msgspec.structs.replace(
        _row(config, cell, args, "fail", died),
        started_utc=started,
        host=host,
        gpus=env.get(GIVEN) or next((env[m] for m in MASKS if env.get(m) not in (None, "", "-1")), ""),
        image=env.get("LAB_IMAGE", ""),
        attempts=attempt.number,
        log=f"steps/{args.out.name}/{LOG}",
    )
    if died:
        return row
    words = words_of(config, cell, args.trial)
    try:
        code, timed_out, failure, left = _run(words, env, args.cwd, config.trial_timeout_s, reader)
    except Stopped:
        _write_attempt(args.out, msgspec.structs.replace(attempt, ended=True))
        raise
    code = shell_code(code)
    verdict, reason = ("error", failure) if failure else reader.verdict(code, timed_out=timed_out)
    if verdict == "pass" and left:
        reason = "; ".join(filter(None, (LEFT, reason)))
    effect = effect_of(cell.settings, cell.read_by, witnesses)
    if verdict != "error" and cell.settings and effect != "yes":
        verdict, reason = "error", f"the cell's settings had no effect: {effect}"
    return msgspec.structs.replace(
        row,
        verdict=verdict,
        reason=reason,
        exit_code=None if failure else code,
        seconds=round(time.monotonic() - began, 3),
        step_time=reader.step_time,
        effect=effect,
        judged=reader.judged,
        first_bad_line=min(reader.hits.values(), default=None),
    )


def begin_attempt(folder: Path, host: str, env: dict[str, str]) -> tuple[Attempt, str]:
    """Note this start. -> it, and why an earlier one is the trial's result; "": none is.

    Slurm requeues the jobs of a node that went down, and nothing warns them; those that it preempts it asks
    to end first. The same host under another boot went down, too.
    """
    requeues = env.get("SLURM_RESTART_COUNT", "")
    attempt = Attempt(1, host, _boot(), int(requeues) if requeues.isdecimal() else 0)
    died = ""
    if earlier := read_or_none(folder / ATTEMPT, Attempt):
        attempt = msgspec.structs.replace(attempt, number=earlier.number + 1)
        rebooted = earlier.host == host and earlier.boot and attempt.boot and earlier.boot != attempt.boot
        if not earlier.ended and (rebooted or attempt.requeues > earlier.requeues):
            ending = "Slurm requeued it" if attempt.requeues > earlier.requeues else "it has booted since"
            died = f"its node {earlier.host} went down under it ({ending})"
    _write_attempt(folder, attempt)
    return attempt, died


def _write_attempt(folder: Path, attempt: Attempt) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / ATTEMPT, msgspec.json.encode(attempt))


def _boot() -> str:
    """The kernel's name of this boot, the same in its containers; "" where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _run(
    words: list[str], env: dict[str, str], cwd: str | None, limit_s: float | None, reader: Reader
) -> tuple[int, bool, str, bool]:
    """-> exit code, whether it ran past its limit, why it did not start, whether it left processes."""
    adopt_orphans()
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stopped.append(number))
    try:
        child = subprocess.Popen(
            words,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return CANNOT_START, False, f"{CANNOT_RUN}: {words[0]}: {error.strerror}", False
    guard = Guard(child, limit_s, stopped)
    guard.start()
    assert child.stdout is not None
    _pass_on(child.stdout, reader)
    guard.join()
    if stopped:
        raise Stopped
    return child.returncode, guard.timed_out, "", guard.left


class Guard(threading.Thread):
    """Ends a command at its limit, and what it leaves running, while its output is judged."""

    def __init__(self, child: subprocess.Popen[bytes], limit_s: float | None, stopped: list[int]) -> None:
        super().__init__(daemon=True)
        self._child, self._stopped = child, stopped
        self._deadline = math.inf if limit_s is None else time.monotonic() + limit_s
        self.timed_out = self.left = False  # past its limit; processes outlived it

    def run(self) -> None:
        while self._child.poll() is None:
            if self._stopped or time.monotonic() > self._deadline:
                self.timed_out = not self._stopped
                _end(self._child)
                break
            time.sleep(0.01)
        if not (self.timed_out or self._stopped):
            until = time.monotonic() + HELPERS_S
            while (left := bool(descendants())) and time.monotonic() < until:
                time.sleep(0.02)
            self.left = left
        kill_descendants()  # they hold the output open, and disturb the next trial


def _pass_on(source: IO[bytes], reader: Reader) -> None:
    """Judge all of the output; write the first MOST_LOG_BYTES of it."""
    num_written = left_out = 0
    # A carriage return ends a line, too: progress bars write nothing else for minutes.
    lines = io.TextIOWrapper(source, "utf-8", "replace", newline="")
    while text := lines.readline(LONGEST_LINE):
        reader.line(text.rstrip("\r\n"), is_cut=len(text) == LONGEST_LINE and not text.endswith("\n"))
        if num_written < MOST_LOG_BYTES:
            num_written += len(text)
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            left_out += len(text)
    if left_out:
        print(f"\nlab: {left_out:,} further characters were judged and are not kept", flush=True)


def _end(child: subprocess.Popen[bytes]) -> None:
    """SIGINT, time to write what it has, then SIGKILL, for its whole session."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # all of it has ended
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=GRACE_S)
            return
    child.wait()


def _row(config: TrialsConfig, cell: Cell, args: argparse.Namespace, verdict: str, reason: str) -> Trial:
    """What is known of this trial before it runs."""
    return Trial(
        cell=cell.name,
        trial=args.trial,
        verdict=verdict,
        reason=reason,
        order=args.order,
        seed=seed_of(config, args.trial, cell),
        step=args.out.name,
    )
