"""Slow a command down without changing it: stop all of its processes for a share of the time.

What the command waits for outside of them (a GPU, a disk, another machine) goes on meanwhile, as it does
beside any slower program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from lab.rooms.trials.config import RATIO, Cell, Trial, TrialsConfig

PERIOD_S = 0.005  # shorter than most steps, so that all of them are slowed
MOST = 50.0
LOOK_S = 0.25  # how often new processes are looked for
RECENT = 3  # control trials that the next one learns from


def pause_for(config: TrialsConfig, cell: Cell, rows: Sequence[Trial]) -> float | None:
    """How many times as long the processes of this control are to take; None: its cell is not slower (yet).

    From the trials so far: the cell's median step time over the baseline's, and more where earlier trials of
    the control stayed below it, as those of a program do that waits for its GPU anyway.
    """
    base, slow, mine = (
        [row for row in rows if row.cell == name and row.step_time]
        for name in (config.baseline, cell.slow_as, cell.name)
    )
    if not base or not slow:
        return None
    wanted = _median(slow) / _median(base)
    if wanted <= RATIO:
        return None
    recent = [row for row in sorted(mine, key=lambda row: row.trial) if row.paused][-RECENT:]
    if not recent:
        return min(MOST, wanted)
    reached = _median(recent) / _median(base)
    last = recent[-1].paused or wanted
    return max(1.0, min(MOST, last * wanted / reached))


class Pauses:
    """Around a command whose processes are to take `times` as long; they run freely when it ends."""

    def __init__(self, pid: int, times: float) -> None:
        self._pid, self._share = pid, 1 - 1 / times
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._family: list[int] = [pid]

    def __enter__(self) -> Pauses:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._signal(signal.SIGCONT)

    def _run(self) -> None:
        looked, owed = 0.0, 0.0
        while not self._ended.is_set():
            began = time.monotonic()
            if began - looked > LOOK_S:
                self._family, looked = family(self._pid), began
            self._signal(signal.SIGSTOP)
            # A sleep lasts longer than asked on a busy machine; the next one gives back what it took.
            self._ended.wait(max(0.0, PERIOD_S * self._share + owed))
            self._signal(signal.SIGCONT)
            stopped = time.monotonic() - began
            self._ended.wait(PERIOD_S * (1 - self._share))
            owed = self._share * (time.monotonic() - began) - stopped
            owed = max(-PERIOD_S, min(PERIOD_S, owed))

    def _signal(self, number: int) -> None:
        for pid in self._family:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def family(pid: int) -> list[int]:
    """This process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The name before it may hold anything, so the fields are counted from its closing bracket.
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        left += parents.get(one, [])
    return found


def _median(rows: Sequence[Trial]) -> float:
    return statistics.median(row.step_time for row in rows if row.step_time)
