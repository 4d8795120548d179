"""A guard for a program that does not know of it: every model is met when it is called for the first time.

A model is the outermost module of a call that has weights. Its optimizer is met by the weights it updates, a
gradient scaler when it is used. The record is written when the program ends, whenever something bad is found,
and now and then.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from pathlib import Path

from torch import nn

from lab.rooms.nan.watch import seam
from lab.rooms.nan.watch.guard.guard import Guard
from lab.rooms.nan.watch.lane import blind
from lab.rooms.nan.watch.unseen_by_compile import hidden

MOST_GUARDS = 8


class Auto:
    """All guards of this process."""

    def __init__(self, out: str | Path, on_bad: str) -> None:
        self.out, self.on_bad = Path(out), on_bad
        self.guards: list[Guard] = []
        self._ignored: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._lock = threading.RLock()
        self._busy = threading.local()

    @hidden
    def meet(self, module: nn.Module) -> seam.Call | None:
        """A module that nobody watches is called; it becomes a model with a guard if it should be one."""
        if module in self._ignored or getattr(self._busy, "on", False) or blind() or self._inside_a_model():
            return None
        with self._lock:
            if seam.known(module) is None and not self._guard(module):
                self._ignored.add(module)
        return seam.known(module)

    def _guard(self, module: nn.Module) -> bool:
        if len(self.guards) >= MOST_GUARDS or next(module.parameters(), None) is None:
            return False
        self._busy.on = True
        try:
            guard = Guard(module, None, None, on_bad=self.on_bad, out=self.out)
            guard.index = len(self.guards)
            guard.__enter__()
        finally:
            self._busy.on = False
        self.guards.append(guard)
        return True

    def _inside_a_model(self) -> bool:
        """Modules that a model's own code makes and calls belong to that model."""
        return any(guard.watch._lanes.lane.inside for guard in self.guards)

    def close(self) -> None:
        """Write all records, newest guard first, so that patches are taken back in order."""
        seam.meet_strangers(None)
        with contextlib.ExitStack() as stack:  # one whose reaction raises keeps no other from its record
            for guard in self.guards:
                stack.push(guard)


def start(out: str | Path, on_bad: str = "keep") -> Auto:
    """Guard every model of this process from now on; the records go to `out`."""
    auto = Auto(out, on_bad)
    seam.meet_strangers(auto.meet)
    atexit.register(auto.close)
    return auto


def start_from_env() -> Auto:
    """`start` in a program that `lab run nan train` began: the settings are in its environment."""
    return start(os.environ["LAB_NAN_GUARD"], os.environ.get("LAB_NAN_ON_BAD", "keep"))
