"""One forward of the whole model: its calls, its leaves as labels, its counts."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from lab.rooms.nan.watch.batch import Batch, Label
from lab.rooms.nan.watch.count import KINDS, Counted, all_clean
from lab.rooms.nan.watch.leaves import caches_in
from lab.rooms.nan.watch.unseen_by_compile import passes_on


class Forward:
    """What is known of a forward: its calls, its leaves as labels, its counts."""

    # Most forwards never change these.
    # (call, its input, value) of the first key/value cache, and of each call that takes another one.
    caches: Sequence[tuple[int, str | int, Any]] = ()
    caches_at: Sequence[int] = ()  # where these calls begin in the list of events
    # By call: since when the cache that it takes is bad, and why something in that may have been.
    cached: Mapping[int, tuple[int | None, str]] = MappingProxyType({})
    weighed = bytes = 0
    collecting = False  # the garbage collector, which is off while the forward lasts, was on before
    failed = ""  # why it could not be counted, if so
    step: Any = None  # what `take` made of it
    time, update = 0, -1  # for the guard: when it ended, and in which step
    saved: Any = None  # for the guard: what it takes to run it again
    passage: Any = None  # for the guard: what became of its output

    @passes_on
    def __init__(self, number: int = 0, phase: str = "forward", query_length: int = 0) -> None:
        self.number, self.phase, self.query_length = number, phase, query_length
        self.calls: list[list[Any]] = []  # [module, parent call, returned]
        self.stack: list[int] = []
        self._parts: list[tuple[Batch, Counted]] = []

    def enter(self, module: int) -> int:
        self.calls.append([module, self.stack[-1] if self.stack else -1, False])
        self.stack.append(len(self.calls) - 1)
        return self.stack[-1]

    def note_caches(self, call: int, args: Sequence[Any], kwargs: Mapping[str, Any], index: int) -> None:
        """What a call takes for its key/value cache; `index` of its event."""
        for name, value in caches_in(args, kwargs):
            if value is not self.cache:
                self.caches = [*self.caches, (call, name, value)]
                self.caches_at = [*self.caches_at, index]

    @property
    def cache(self) -> Any:
        """What the whole model takes for its key/value cache."""
        return self.caches[0][2] if self.caches else None

    def leave(self, module: int) -> int:
        """A call returned; calls above it on the stack ended by an exception that was caught."""
        while self.calls[self.stack[-1]][0] != module:
            self.stack.pop()
        self.calls[self.stack[-1]][2] = True
        return self.stack.pop()

    def pass_through(self, module: int) -> int:
        """A module without children was called and returned."""
        self.calls.append([module, self.stack[-1] if self.stack else -1, True])
        return len(self.calls) - 1

    def empty(self) -> bool:
        """Whether nothing of it was taken so far."""
        return not self._parts

    def is_one_part(self) -> bool:
        """Whether all of it was read at once."""
        return len(self._parts) == 1 and not self.stack

    def untracked(self) -> bool:
        return any(batch.untracked for batch, _ in self._parts)

    def take(self, batch: Batch, counted: Counted) -> None:
        """Append the batch's leaves; `counted` will have one row per tensor of the batch."""
        self._parts.append((batch, counted))

    def turned_out_clean(self) -> bool:
        """Whether a GPU has found nothing bad in it, after the wait for that; False if no GPU counted it.

        The work that its tensors need here is done before the wait.
        """
        if self.failed or not all(counted.by_gpu for _, counted in self._parts):
            return False
        for batch, _ in self._parts:
            batch.let_go()
        if self.collecting and 0 < gc.get_threshold()[0] < gc.get_count()[0]:
            gc.collect(0)  # which would come as soon as it is on again, while the GPU waits
        return not any(counted.bad() for _, counted in self._parts)

    def known_clean(self) -> Batch | None:
        """Its one batch, if that is known to be clean and nothing of it was missed; None if not known."""
        if len(self._parts) != 1 or self.failed:
            return None
        batch, counted = self._parts[0]
        return batch if not batch.overwritten and counted.known_clean() else None

    def let_go(self) -> None:
        """Drop the tensors; nobody asks for their shapes any more."""
        for batch, _ in self._parts:
            batch.tensors = []

    def read_out(self) -> Seen:
        """All parts as one, after the wait for their counts."""
        if len(self._parts) == 1:
            batch, counted = self._parts[0]
            rows, places = counted.rows(), np.asarray(batch.index, np.int64)
            clean = not batch.overwritten and not rows[:, :3].any()  # -1 stands for what is not known
            only = places if clean else _known(places, rows)
            return Seen(batch.labels, batch.leaf_call, only, rows, batch.outputs(), [batch], clean)
        batches = [batch for batch, _ in self._parts]
        parts = [counted.rows() for _, counted in self._parts]
        if not parts:
            return Seen([], [], np.zeros(0, np.int64), np.zeros((0, len(KINDS))), np.zeros(0, bool), [])
        begins = np.cumsum([0, *map(len, parts)])
        index = [
            _known(np.asarray(batch.index, np.int64), part)
            for batch, part in zip(batches, parts, strict=True)
        ]
        moved = [np.where(part >= 0, part + begin, -1) for part, begin in zip(index, begins, strict=False)]
        return Seen(
            [label for batch in batches for label in batch.labels],
            [call for batch in batches for call in batch.leaf_call],
            np.concatenate(moved),
            np.concatenate(parts),
            np.concatenate([batch.outputs() for batch in batches]),
            batches,
        )


def _known(index: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The index with -1 for rows that were not counted in time."""
    if all_clean(rows) or not len(rows) or rows[:, 0].min() >= 0:
        return index
    missing = np.append(rows[:, 0] < 0, True)  # -1 takes the added one
    masked_index: np.ndarray = np.where(missing[index], -1, index)
    return masked_index


@dataclass
class Seen:
    """A whole forward: its leaves in the order of time, and the index of each leaf's row in `counts`.

    Index -1: the tensor was overwritten before it could be counted.
    """

    labels: list[Label]
    leaf_call: list[int]
    index: np.ndarray
    counts: np.ndarray  # (distinct tensors, kinds)
    put_out: np.ndarray  # which of these some module put out
    batches: list[Batch]
    clean: bool = False  # known to be: all was counted, and nothing is bad

    def unknown(self) -> int:
        """How many leaves were overwritten before they could be counted."""
        if self.clean:
            return 0
        return int((self.index < 0).sum())

    def shapes(self) -> list[tuple[torch.Size, torch.dtype]]:
        """Of each row of counts."""
        return [shape for batch in self.batches for shape in batch.shapes()]

    def leaf_dtypes(self) -> list[str]:
        shapes = self.shapes()
        return [str(shapes[u][1]).replace("torch.", "") if u >= 0 else "" for u in self.index]

    def leaf_numel(self) -> np.ndarray:
        sizes = np.asarray([*(shape.numel() for shape, _ in self.shapes()), 0])
        numel: np.ndarray = sizes[self.index]  # -1 takes the added zero
        return numel
