"""Counts that wait for company: the tensors of several small forwards are counted by one call.

On a CPU every count has a fixed price of tens of microseconds, as much as a small model's whole forward. What
was written in place between its forward and its count is unknown, not clean: its row is -1. Only tensors that
the program cannot reach may wait: it can write to the model's inputs and outputs by numpy, which no version
shows, so these are counted at once.
"""

from __future__ import annotations

import threading
from collections import Counter as Tally
from collections.abc import Collection, Sequence
from operator import attrgetter

import numpy as np
from torch import Tensor

from lab.rooms.nan.watch.count import KINDS, Counted, Counter

MOST_TENSORS = 512
MOST_BYTES = 8388608
_VERSION = attrgetter("_version")


class Later(Counted):
    """Rows that will be counted together with others', at the latest when they are asked for."""

    def __init__(self, owner: Deferred, tensors: Sequence[Tensor], at_once: Sequence[int]) -> None:
        self.counted: np.ndarray | None = None
        self._owner, self._count = owner, len(tensors)
        self._at_once, self._rest = at_once, [*range(len(tensors))]
        self._now = owner.rows_of([tensors[at] for at in at_once]) if at_once else None
        if at_once:
            self._rest = sorted({*self._rest} - {*at_once})
        self.tensors: Sequence[Tensor] = [tensors[at] for at in self._rest]
        self.versions = [*map(_VERSION, self.tensors)]

    def settle(self, rows: np.ndarray) -> int:
        """Take the rows of the tensors that waited; how many of these had been overwritten."""
        now, changed = [*map(_VERSION, self.tensors)], 0
        if now != self.versions:
            late = [one != was for one, was in zip(now, self.versions, strict=True)]
            rows[late] = -1
            changed = sum(late)
        if self._now is None:
            self.counted = rows
        else:
            self.counted = np.empty((self._count, len(KINDS)))
            self.counted[self._rest], self.counted[self._at_once] = rows, self._now
        self.tensors = ()
        return changed

    def rows(self) -> np.ndarray:
        if self.counted is None:
            self._owner.settle()
        assert self.counted is not None
        return self.counted


class Deferred:
    """Collects lists of tensors and counts them together; any thread may add."""

    def __init__(self, count: Counter) -> None:
        self._count, self._lock = count, threading.RLock()
        self._waiting: list[Later] = []
        self._tensors = self._bytes = 0
        self.overwritten = 0  # tensors that were written to between their forward and their count
        self.uncounted: Tally[str] = Tally()  # why -> tensors

    def begin(self, tensors: Sequence[Tensor], num_bytes: int, exposed: Collection[int] = ()) -> Later:
        """Rows for `tensors`; those at `exposed`, and what shares their memory, are counted now."""
        later = Later(self, tensors, _with_aliases(tensors, exposed))
        with self._lock:
            self._waiting.append(later)
            self._tensors += len(tensors)
            self._bytes += num_bytes
        return later

    @property
    def full(self) -> bool:
        return self._tensors >= MOST_TENSORS or self._bytes >= MOST_BYTES

    def settle(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._tensors = self._bytes = 0
        if not waiting:
            return
        rows, begin = self.rows_of([tensor for later in waiting for tensor in later.tensors]), 0
        for later in waiting:
            end = begin + len(later.tensors)
            self.overwritten += later.settle(rows[begin:end])
            begin = end

    def rows_of(self, tensors: Sequence[Tensor]) -> np.ndarray:
        """The counts; -1 for a tensor that cannot be counted, whose reason `uncounted` has."""
        try:
            return self._count(tensors)
        except Exception:  # which of them cannot be counted is found one by one
            return np.concatenate([self._alone(tensor) for tensor in tensors])

    def _alone(self, tensor: Tensor) -> np.ndarray:
        try:
            return self._count([tensor])
        except Exception as error:
            self.uncounted[f"{type(error).__name__}: {str(error)[:200]}"] += 1
            return np.full((1, len(KINDS)), -1.0)


def _with_aliases(tensors: Sequence[Tensor], exposed: Collection[int]) -> list[int]:
    """The indices of the exposed tensors and of all that may lie in the same memory.

    What an exposed tensor is a part of begins before it, but not before its storage.
    """
    if not exposed:
        return []
    begins = [*map(Tensor.data_ptr, tensors)]
    spans = [(begins[at] - _before(tensors[at]), begins[at] + _extent(tensors[at])) for at in exposed]
    return [at for at, begin in enumerate(begins) if any(low <= begin < high for low, high in spans)]


def _before(tensor: Tensor) -> int:
    """Bytes of its storage that lie before it."""
    return int(tensor.storage_offset()) * tensor.element_size()


def _extent(tensor: Tensor) -> int:
    """Bytes from the first to the last element."""
    if tensor.is_contiguous():
        return tensor.numel() * tensor.element_size()
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (sum(steps) + 1) * tensor.element_size()
