"""Gradients as they pass: at module borders and as they accumulate in parameters.

They are reduced, unscaled, clipped and zeroed in place afterwards, so references kept for the end of the step
would tell the wrong thing: under DDP the same `p.grad` is NaN on all ranks a moment later. All that one
backward collected is counted together when it ends; where a reduction follows at once, each is counted at
once. On a GPU a count is launched and not waited for.

A hook runs inside the program's backward, so it only appends to a list of its thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lab.rooms.nan.watch.count import Counted
from lab.rooms.nan.watch.guard.journal import Journal
from lab.rooms.nan.watch.plain import as_counted, is_odd
from lab.rooms.nan.watch.quiet import quiet

BUDGET_BYTES = 64 << 20  # of gradients that are held for one count
MOST_HELD = 4096
LOOK_EVERY = 16  # counts, between two looks at what a light backward holds
TICK = 0.2  # what is collected between two ticks of the clock is ordered within this part of one


class Passed(NamedTuple):
    """A tensor that passed, as hooks note it. `key` is whatever the caller knows it by."""

    stage: str
    key: Any
    tensor: Tensor
    version: int  # when it passed; -1: torch does not count its writes
    time: float = -1


class Taken(NamedTuple):
    """A tensor that was counted."""

    time: float
    stage: str
    key: Any
    step: int
    size: torch.Size
    type: torch.dtype

    @property
    def shape(self) -> str:
        return "x".join(map(str, self.size))

    @property
    def dtype(self) -> str:
        return str(self.type)[6:]


@dataclass
class Group:
    """Tensors that are counted together, and the versions they had when they passed."""

    taken: list[Taken]
    counted: Counted
    late: list[int]  # which of them had been written to before the count began


class _Lists(threading.local):
    """The calling thread's own list, and how many it has had so far."""

    def __init__(self, every: list[list[Passed]]) -> None:
        self.entries: list[Passed] = []
        every.append(self.entries)
        self.count = 0


class Collector:
    """Collects tensors and counts them in groups; `settled` gives the finished groups' rows."""

    def __init__(self, begin: Callable[[Sequence[Tensor]], Counted], journal: Journal) -> None:
        self._begin, self._journal, self._lock = begin, journal, threading.RLock()
        self._every: list[list[Passed]] = []
        self._lists = _Lists(self._every)
        self._held: list[Passed] = []  # in order of time
        self._groups: list[Group] = []
        self._drained = 0
        self._weighs = True  # whether each tensor is weighed as it comes: not while backwards are light
        self._bytes = self._flushes = 0
        self.unread: dict[str, int] = {}  # why -> tensors

    def take(self, stage: str, key: Any, tensor: Tensor, time: float = -1) -> None:
        """Remember a tensor to be counted."""
        lists = self._lists
        lists.count += 1
        version = -1 if tensor.is_inference() else tensor._version
        lists.entries.append(Passed(stage, key, tensor, version, time))
        if self._weighs:
            self._weigh(tensor)

    def _weigh(self, tensor: Tensor) -> None:
        self._bytes += tensor.numel() * tensor.element_size()
        if self._bytes > BUDGET_BYTES or len(self._lists.entries) > MOST_HELD:
            self.flush()

    def here(self) -> int:
        """How many tensors this thread has taken so far."""
        return self._lists.count

    def anywhere(self) -> int:
        """How many tensors all threads have taken so far."""
        return self._drained + sum(map(len, self._every))

    def mark(self) -> None:
        """What was taken so far came before everything that the clock is asked for from now on."""
        with self._lock:
            for entries in self._every:
                if not entries:
                    continue
                found = entries[:]
                del entries[: len(found)]  # its own thread may have appended more meanwhile
                self._drained += len(found)
                begin, part = self._journal.now(), TICK / len(found)
                self._held += [
                    one if one.time >= 0 else one._replace(time=begin + at * part)
                    for at, one in enumerate(found)
                ]

    def flush(self) -> None:
        """Begin the count of everything held."""
        self.mark()
        with self._lock:
            held, self._held, self._bytes = self._held, [], 0
        if not held:
            return
        tensors: list[Tensor] = []
        taken: list[Taken] = []
        late: list[int] = []
        for one in held:
            for part in self._parts(one.tensor):
                if one.version >= 0 and one.tensor._version != one.version:
                    late.append(len(taken))
                taken.append(Taken(one.time, one.stage, one.key, self._journal.step, part.shape, part.dtype))
                tensors.append(part)
        if not tensors:
            return
        try:
            counted = quiet(self._begin, tensors)
        except Exception as error:  # a count that fails is a note, never the program's problem
            why = f"{type(error).__name__}: {error}"[:200]
            self.unread[why] = self.unread.get(why, 0) + len(tensors)
            return
        with self._lock:
            self._groups.append(Group(taken, counted, late))
            self._flushes += 1
            if self._flushes % LOOK_EVERY == 2:
                size = sum(one.numel() * one.element_size() for one in tensors)
                self._weighs = size * LOOK_EVERY > BUDGET_BYTES or len(tensors) * LOOK_EVERY > MOST_HELD

    def _parts(self, tensor: Tensor) -> list[Tensor]:
        if not is_odd(tensor):
            return [tensor] if tensor.numel() else []
        parts, why = quiet(as_counted, tensor)
        if why:
            self.unread[why] = self.unread.get(why, 0) + 1
        return parts

    def settled(self) -> list[tuple[list[Taken], np.ndarray]]:
        """(what was taken, rows) of all groups so far, after the wait; a row of -1: overwritten too early."""
        self.flush()
        with self._lock:
            groups, self._groups = self._groups, []
        found = []
        for group in groups:
            rows = group.counted.rows()
            rows[group.late] = -1
            found.append((group.taken, rows))
        return found
