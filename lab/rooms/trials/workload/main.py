"""Run the command once, judge it, and say how many more trials it takes.

A trial that lab ends leaves no row: it runs again when the run is resumed, and is counted once.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

import lab
from lab.core.content import EXPECTED, REPORT
from lab.core.gpu import GIVEN, HOST
from lab.core.run import LOG
from lab.core.words import printable
from lab.errors import LabError
from lab.rooms.trials.config import LEFT, NOT_RUN, RESULT, Cell, Trial, TrialsConfig, seed_of, words_of
from lab.rooms.trials.control import pause_for
from lab.rooms.trials.failure import CANNOT_RUN, Reader, parse, shell_code
from lab.rooms.trials.progress import progress, why_not
from lab.rooms.trials.rows import read_settings, read_trials, write_trial
from lab.rooms.trials.workload.effects import APPLY, EFFECTS, effect_of
from lab.rooms.trials.workload.memory import Kills, Memory, blame, who_killed
from lab.rooms.trials.workload.pauses import Pauses, family
from lab.rooms.trials.workload.sensors import Sensors, lost
from lab.workload.hook import hooked

LONGEST_LINE = 1 << 16  # bytes judged at a time
MOST_LOG_BYTES = 64 << 20  # of a trial's output in its log; all of it is judged
LONGEST_NUMBER = 1 << 10  # bytes of a name with its number
NAME_BEGINS = re.compile(rb"[\s,{][A-Za-z_\"']")
LAST_LINES = 200  # which the log has in any case
GRACE_S = 5.0
HELPERS_S = 2.0  # in which what a command started ends with it by itself
MASKS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
CANNOT_START = 127
KILLED = 128 + signal.SIGKILL
NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.ELOOP)
PR_SET_CHILD_SUBREAPER = 36
NOT_JUDGED = (
    "its output was not judged to its end: something holds it open, or --fail takes too long on a line"
)


class Stopped(Exception):
    """lab was asked to end this trial."""


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    try:
        config = read_settings(args.config)
        cell = next(one for one in config.cells if one.name == args.cell)
        (args.out / RESULT).unlink(missing_ok=True)
        row = _not_wanted(config, cell, args) or _trial(config, cell, args)
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


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.rooms.trials.workload")
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--cell", required=True)
    parser.add_argument("--trial", required=True, type=int)
    parser.add_argument("--order", required=True, type=int)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--cwd", help="where the command runs [default: here]")
    return parser.parse_args(argv)


def callers_environment() -> dict[str, str]:
    """This process's environment without what makes a step import lab's copy."""
    env = dict(os.environ)
    if env.pop(EXPECTED, None):
        ours = str(Path(lab.__file__).parent.parent)
        paths = [one for one in env.pop("PYTHONPATH", "").split(":") if one and one != ours]
        env.update({"PYTHONPATH": ":".join(paths)} if paths else {})
    env.pop(REPORT, None)
    return env


def environment(config: TrialsConfig, cell: Cell, trial: int) -> dict[str, str]:
    """The caller's environment, and the cell's variables."""
    trials = {"LAB_TRIAL": str(trial), "LAB_TRIAL_CELL": cell.name}
    return {
        **callers_environment(),
        **trials,
        "LAB_TRIAL_SEED": str(seed_of(config, trial, cell)),
        **cell.env,
    }


def observed(env: dict[str, str], cell: Cell, folder: Path) -> dict[str, str]:
    """`env` for a cell whose settings are made, or seen to have an effect, from inside the command."""
    if not cell.settings and not cell.read_by:
        return env
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    words = json.dumps({"out": str(folder), "settings": cell.settings, "read_by": cell.read_by})
    return hooked({**env, EFFECTS: words}, APPLY)


def _trial(config: TrialsConfig, cell: Cell, args: argparse.Namespace) -> Trial:
    reader = Reader(parse(config.fail), config.step_time)
    started, began = datetime.now(timezone.utc).isoformat(timespec="milliseconds"), time.monotonic()
    began_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    witnesses = args.out.resolve() / "effects"
    env = observed(environment(config, cell, args.trial), cell, witnesses)
    words = words_of(config, cell, args.trial)
    paused = pause_for(config, cell, read_trials(args.out.parent)) if cell.slow_as else None
    memory = Memory()
    with Sensors(env) as sensors:
        code, timed_out, failure, left = _run(words, env, args.cwd, config.trial_timeout_s, reader, paused)
    code = shell_code(code)
    verdict, reason = (
        ("error", failure)
        if failure
        else judged(reader, code, timed_out, memory.kills(), lost(env) if code else "")
    )
    if verdict == "pass" and left:
        reason = "; ".join(filter(None, (f"{LEFT} ({left})", reason)))
    step = args.out.name
    effect = effect_of(cell.settings, cell.read_by, witnesses)
    if verdict != "error" and cell.settings and effect != "yes":
        verdict, reason = "error", f"the cell's settings had no effect: {effect}"
    return Trial(
        cell=cell.name,
        trial=args.trial,
        verdict=verdict,
        reason=reason,
        order=args.order,
        seed=seed_of(config, args.trial, cell),
        exit_code=None if failure else code,
        seconds=round(time.monotonic() - began, 3),
        step_time=reader.step_time,
        started_utc=started,
        began_s=round(began_s, 3),
        boot=_boot(),
        # As cells name it; a container has a name of its own.
        host=env.get("SLURMD_NODENAME") or env.get(HOST) or platform.node(),
        gpus=env.get(GIVEN) or next((env[m] for m in MASKS if env.get(m) not in (None, "", "-1")), ""),
        image=env.get("LAB_IMAGE", ""),
        **sensors.summary(),  # type: ignore[arg-type]
        paused=None if paused is None else round(paused, 4),
        effect=effect,
        judged=reader.judged,
        first_bad_line=min(reader.hits.values(), default=None),
        step=step,
        log=f"steps/{step}/{LOG}",
    )


def judged(reader: Reader, code: int, timed_out: bool, kills: Kills, machine: str = "") -> tuple[str, str]:
    """The reader's verdict, unless the kernel, or somebody, ended the command and not its own failing.

    machine: what else of the machine ended it, such as a GPU that went away.
    """
    whose, evidence = blame(kills)
    if not machine and code and not timed_out and (whose == "machine" or (code == KILLED and not whose)):
        machine = evidence or f"{who_killed(kills)}; `exit==137` in --fail counts it"
    verdict, reason = reader.verdict(code, timed_out=timed_out, machine=machine)
    if evidence and evidence not in reason:
        reason = f"{reason}; {evidence}" if reason else f"although {evidence}"
    return verdict, reason


def _boot() -> str:
    """The kernel's name of this boot, the same in its containers; "" where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _run(
    words: list[str],
    env: dict[str, str],
    cwd: str | None,
    limit_s: float | None,
    reader: Reader,
    paused: float | None = None,
) -> tuple[int, bool, str, str]:
    """-> exit code, whether it ran past its limit, why it cannot be judged, what it left running."""
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
        lasting = error.errno in NOT_THERE  # and no shortage of memory or processes
        why = f"{CANNOT_RUN if lasting else 'no start'}: {words[0]}: {error.strerror}"
        return CANNOT_START, False, why, ""
    with Pauses(child.pid, paused) if paused else contextlib.nullcontext():
        timed_out, judged, left = _follow(child, reader, limit_s, stopped)
    if stopped or not judged:
        reader.close()
    if stopped:
        raise Stopped
    return child.returncode, timed_out, "" if judged else NOT_JUDGED, left


def _follow(
    child: subprocess.Popen[bytes], reader: Reader, limit_s: float | None, stopped: list[int]
) -> tuple[bool, bool, str]:
    """Pass the output on and judge it until the command has ended.

    -> whether its limit ended it, whether all of its output was judged, the names of what it left running.
    """
    assert child.stdout is not None
    source = child.stdout

    thread = threading.Thread(target=_pass_on, args=(source, reader), daemon=True)
    thread.start()
    deadline = None if limit_s is None else time.monotonic() + limit_s
    timed_out = False
    while child.poll() is None:
        if stopped or (deadline is not None and time.monotonic() > deadline):
            timed_out = not stopped
            _end(child)
            break
        time.sleep(0.01)
    spared = reader.expressions.pid if reader.expressions else None
    left = "" if timed_out or stopped else _left_running(spared)
    _signal_group(child, signal.SIGKILL)
    _kill_orphans(spared)
    at = -1
    while thread.is_alive() and at != reader.at:  # for as long as it comes forward
        at = reader.at
        thread.join(timeout=GRACE_S)
    return timed_out, not thread.is_alive(), left


def _left_running(spared: int | None) -> str:
    """The names of processes that do not end with the command, as its helpers do; "": none."""
    until = time.monotonic() + HELPERS_S
    while running := [pid for pid in family(os.getpid())[1:] if pid != spared and not _is_dead(pid)]:
        if time.monotonic() > until:
            names = sorted({name for pid in running if (name := _name(pid))})
            return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        time.sleep(0.02)
    return ""


def _is_dead(pid: int) -> bool:
    """Gone, or waiting for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True


def _name(pid: int) -> str:
    try:
        return printable(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip())
    except OSError:
        return ""


def _pass_on(source: IO[bytes], reader: Reader) -> None:
    """Judge all of the output; write the first MOST_LOG_BYTES of it and its last lines."""
    kept, left_out, tail = 0, 0, deque[str](maxlen=LAST_LINES)
    for text in _lines(source):
        reader.line(text.rstrip("\r\n"))
        if kept < MOST_LOG_BYTES:
            kept += len(text)
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            if len(tail) == LAST_LINES:
                left_out += len(tail[0])
            tail.append(text)
    if left_out:
        sys.stdout.write(f"\nlab: {left_out:,} characters judged and not kept; the last lines follow\n")
    sys.stdout.write("".join(tail))
    sys.stdout.flush()


def _lines(source: IO[bytes]) -> Iterator[str]:
    """Lines, the longest in parts that begin with a name: neither a number nor its name is cut off."""
    rest = b""
    while read := source.readline(LONGEST_LINE):
        read, rest = rest + read, b""
        if not read.endswith(b"\n") and len(read) >= LONGEST_LINE:
            begin = len(read) - LONGEST_NUMBER
            names = [one.start() + 1 for one in NAME_BEGINS.finditer(read, begin - LONGEST_NUMBER, begin)]
            read, rest = (read[: names[-1]], read[names[-1] :]) if names else (read, b"")
        yield read.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    """SIGINT, time to write what it has, then SIGKILL, for its whole session."""
    _signal_group(child, signal.SIGINT)
    try:
        child.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        _signal_group(child, signal.SIGKILL)
        child.wait()


def adopt_orphans() -> None:
    """Processes below this one whose parent ends become its own, whatever session they are in."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_orphans(spared: int | None) -> None:
    """What a command leaves running holds its output open and disturbs the next trial."""
    for _ in range(3):  # one may have started another meanwhile
        for pid in family(os.getpid())[1:]:
            if pid == spared:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all of it has ended
        os.killpg(child.pid, number)


def _not_wanted(config: TrialsConfig, cell: Cell, args: argparse.Namespace) -> Trial | None:
    """A row that says why this trial need not run; where the driver starts steps itself, it asks before."""
    reason = why_not(config, cell.name, read_trials(args.out.parent))
    if not reason:
        return None
    return Trial(
        cell=cell.name,
        trial=args.trial,
        verdict=NOT_RUN,
        reason=reason,
        order=args.order,
        seed=seed_of(config, args.trial, cell),
        step=args.out.name,
    )
