"""Gradients as they pass: at module borders and as they accumulate in parameters.

They are reduced, unscaled, clipped and zeroed in place afterwards, so references kept for the end of the step
would tell the wrong thing: under DDP the same `p.grad` is NaN on all ranks a moment later. All that one
backward collected is counted together when it ends; where a reduction follows at once, each is counted at
once. On a GPU a count is launched and not waited for.
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
from lab.rooms.nan.watch.plain import as_counted, is_odd
from lab.rooms.nan.watch.quiet import quiet
from lab.rooms.nan.watch.unseen_by_compile import hidden

BUDGET_BYTES = 64 << 20  # of gradients that are held for one count
MOST_HELD = 4096


class Taken(NamedTuple):
    """One tensor that passed. `key` is whatever the caller knows it by."""

    time: int
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


class Collector:
    """Collects tensors and counts them in groups; `settled` gives the finished groups' rows."""

    def __init__(self, begin: Callable[[Sequence[Tensor]], Counted], clock: Callable[[], int]) -> None:
        self._begin, self._clock, self._lock = begin, clock, threading.RLock()
        self._held: list[tuple[Taken, Tensor, int]] = []
        self._bytes = 0
        self._groups: list[Group] = []
        self._callback_queued = False
        self.step = 0  # updates so far: what is taken now belongs to this step
        self.unread: dict[str, int] = {}  # why -> tensors

    def take(self, stage: str, key: Any, tensor: Tensor) -> None:
        """Remember a tensor to be counted. Called in the program's own backward, so it must be cheap."""
        if is_odd(tensor):
            parts, why = quiet(as_counted, tensor)
            if why:
                self.unread[why] = self.unread.get(why, 0) + 1
        else:
            parts = [tensor] if tensor.numel() else []
        for part in parts:
            taken = Taken(self._clock(), stage, key, self.step, part.shape, part.dtype)
            self._held.append((taken, part, -1 if part.is_inference() else part._version))
            self._bytes += part.numel() * part.element_size()
        if self._bytes > BUDGET_BYTES or len(self._held) > MOST_HELD:
            self.flush()

    def flush_when_backward_ends(self) -> None:
        """Called inside a backward: count what it collected when it is over."""
        if self._callback_queued:
            return
        self._callback_queued = True
        torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)

    @hidden
    def _backward_ended(self) -> None:
        self._callback_queued = False
        self.flush()

    def flush(self) -> None:
        """Begin the count of everything held."""
        with self._lock:
            held, self._held, self._bytes = self._held, [], 0
            self._callback_queued = False
        if not held:
            return
        late = [
            at for at, (_, tensor, version) in enumerate(held) if version >= 0 and tensor._version != version
        ]
        taken = [one for one, _, _ in held]
        try:
            counted = quiet(self._begin, [tensor for _, tensor, _ in held])
        except Exception as error:  # a count that fails is a note, never the program's problem
            why = f"{type(error).__name__}: {error}"[:200]
            self.unread[why] = self.unread.get(why, 0) + len(held)
            return
        with self._lock:
            self._groups.append(Group(taken, counted, late))

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
