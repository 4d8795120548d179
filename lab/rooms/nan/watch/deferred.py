"""Counts that wait for company: the tensors of several small forwards are counted by one call.

On a CPU every count has a fixed price of tens of microseconds, as much as a small model's whole forward. What
was written in place between its forward and its count is unknown, not clean: its row is -1.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from operator import attrgetter

import numpy as np
from torch import Tensor

from lab.rooms.nan.watch.count import KINDS, Counted, Counter

MOST_TENSORS = 512
MOST_BYTES = 8388608
_VERSION = attrgetter("_version")


class Later(Counted):
    """Rows that will be counted together with others', at the latest when they are asked for."""

    def __init__(self, owner: Deferred, tensors: Sequence[Tensor], num_bytes: int) -> None:
        self.tensors, self.num_bytes = tensors, num_bytes
        self.versions = [*map(_VERSION, tensors)]
        self.counted: np.ndarray | None = None
        self._owner = owner

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

    def begin(self, tensors: Sequence[Tensor], num_bytes: int) -> Later:
        later = Later(self, tensors, num_bytes)
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
        try:
            rows = self._count([tensor for later in waiting for tensor in later.tensors])
        except Exception:  # which of them cannot be counted is found one by one
            rows = np.concatenate([self._alone(later) for later in waiting])
        begin = 0
        for later in waiting:
            later.counted = rows[begin : begin + len(later.tensors)]
            begin += len(later.tensors)
            if (now := [*map(_VERSION, later.tensors)]) != later.versions:
                changed = [one != was for one, was in zip(now, later.versions, strict=True)]
                later.counted[changed] = -1
                self.overwritten += sum(changed)
            later.tensors = ()

    def _alone(self, later: Later) -> np.ndarray:
        rows = np.full((len(later.tensors), len(KINDS)), -1.0)
        for at, tensor in enumerate(later.tensors):
            try:
                rows[at] = self._count([tensor])[0]
            except Exception:
                continue
        return rows
