"""Tell which runs are going on, and show their last lines, without touching any lock."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from lab.core.run import LOCK, LOG
from lab.core.words import printable
from lab.errors import LabError
from lab.serve.confine import inside, opened
from lab.serve.rows import RunRow

TAIL_BYTES = 16 << 10
MOST_LOGS = 8  # of ranks of one step
RUNNING, ANALYSING = "running", "being analysed"
LEFT, ELSEWHERE = "left by its driver", "begun on another host"
GOING = (RUNNING, ANALYSING)


def activity(folder: Path, row: RunRow, locks: set[tuple[int, int]] | None = None) -> str:
    """Say what an open run is doing; "" for one that has ended.

    A driver holds a lock on its run for as long as it lives, and /proc/locks names it. Trying the lock would
    hold it, and make a driver that starts then fail.
    """
    if not may_go_on(row):
        return ""
    try:
        lock = os.lstat(folder / LOCK)
    except OSError:
        lock = None
    held = locks if locks is not None else held_locks()
    if lock and (lock.st_dev, lock.st_ino) in held:
        return RUNNING if row.state in ("open", "planned") else ANALYSING
    if row.state != "open":
        return ""
    return LEFT if row.host == socket.gethostname() else ELSEWHERE


def may_go_on(row: RunRow) -> bool:
    """Whether steps or the verdict of a run are not there yet."""
    return row.state in ("open", "planned") or (row.state in ("done", "failed") and not row.verdict)


def held_locks() -> set[tuple[int, int]]:
    """(device, inode) of every file of this machine on which a lock is held."""
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return set()
    return {
        (os.makedev(int(major, 16), int(minor, 16)), int(inode))
        for line in lines
        if len(line) > 5 and line[1] != "->" and line[5].count(":") == 2
        for major, minor, inode in [line[5].split(":")]
    }


def tail(folder: Path, name: str, most_lines: int = 40) -> list[str]:
    """The last lines of a log, at most TAIL_BYTES of it; [] without one."""
    try:
        file = opened(folder, name)
    except LabError:
        return []
    with file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - TAIL_BYTES))
        text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    lines = text.splitlines()
    return [printable(line) for line in (lines[1:] if size > TAIL_BYTES else lines)[-most_lines:]]


def live_tail(folder: Path, row: RunRow) -> dict[str, list[str]]:
    """The last lines of each step that is going on: of its log, else of its ranks' logs."""
    return {step.name: _last_lines(folder, step.folder) for step in row.steps if step.status == "begun"}


def _last_lines(folder: Path, step: str) -> list[str]:
    if lines := tail(folder, f"{step}/{LOG}"):
        return lines
    try:
        names = sorted(name for name in os.listdir(inside(folder, step)) if name.endswith(".log"))
    except (LabError, OSError):
        return []
    tails = ((name, tail(folder, f"{step}/{name}", 8)) for name in names[:MOST_LOGS])
    return [f"{name}: {line}" for name, lines in tails for line in lines]
