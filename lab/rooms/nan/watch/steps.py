"""What a watch reports: one Step per forward, its Rows, and the Totals over all forwards."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from lab.rooms.nan.watch.batch import Label
from lab.rooms.nan.watch.count import KINDS
from lab.rooms.nan.watch.forward import Seen
from lab.rooms.nan.watch.roles import Birth


@dataclass(frozen=True)
class Row:
    """One leaf of one call in a forward that is kept call by call."""

    seq: int
    module: str
    kind: str  # the module's class
    side: str
    leaf: str
    shape: str
    dtype: str
    counts: tuple[float, ...]  # by KINDS; -1: not counted
    role: str


@dataclass
class Step:
    """One forward of the whole model."""

    number: int
    phase: str
    query_length: int
    bad_leaves: int = 0
    reached_output: bool = False
    births: list[Birth] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    extremes: list[str] = field(default_factory=list)  # of the last modules before the first bad number
    _totals: dict[str, float] | None = None
    _settle: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    @property
    def totals(self) -> dict[str, float]:
        """Counts by KINDS over the distinct tensors that modules put out."""
        if self._totals is None and self._settle is not None:
            self._settle()
        return self._totals or {}

    def totals_follow(self, settle: Callable[[], None]) -> None:
        """The totals are added up later, a few forwards at a time, at the latest by `settle`."""
        self._settle = settle

    def set_totals(self, totals: dict[str, float]) -> None:
        self._totals, self._settle = totals, None


@dataclass
class Total:
    """All calls of one module, leaf and phase together. `first_bad_step` is -1 while all were clean."""

    module: str
    kind: str
    side: str
    leaf: str
    phase: str
    dtype: str
    calls: int = 0
    numel: int = 0  # by the sizes of the first of equal forwards
    counts: np.ndarray = field(default_factory=lambda: np.zeros(len(KINDS)))
    first_bad_step: int = -1


MOST_WAITING = 64  # forwards whose counts wait to be added up
NOT_COUNTED = np.full((1, len(KINDS)), -1.0)


class RunningTotals:
    """Sums of forwards that made the same calls; many at a time, because every numpy call has its price."""

    def __init__(self, phase: str, labels: list[Label], dtypes: list[str], sizes: np.ndarray) -> None:
        self.phase, self.labels, self.dtypes, self.sizes = phase, labels, dtypes, sizes
        self.calls = 0
        self.first_bad = np.full(len(labels), -1)
        self._counts = np.zeros((len(labels), len(KINDS)))
        self._counts[:, 3:] = -1
        self._waiting: list[tuple[Step, np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, step: Step, counted: Seen, bad: np.ndarray | None) -> None:
        """`bad` says for each leaf whether it is bad; None if none is."""
        self.calls += 1
        step.totals_follow(self.settle)
        self._waiting.append((step, counted.counts, counted.index, counted.put_out))
        if bad is not None:
            self.first_bad[(self.first_bad < 0) & bad] = step.number
        if len(self._waiting) >= MOST_WAITING:
            self.settle()

    @property
    def counts(self) -> np.ndarray:
        self.settle()
        return self._counts

    def settle(self) -> None:
        """Add up what waits.

        Forwards that were read by one template share their index arrays, and go together.
        """
        for _, equal in itertools.groupby(self._waiting, key=lambda entry: (id(entry[2]), id(entry[3]))):
            steps, counts, index, put_out = zip(*equal, strict=True)
            stacked = np.stack(counts)
            if stacked.min() >= 0:  # a GPU's: all was counted
                self._add_known(steps, stacked, index[0], put_out[0])
                continue
            for step, totals in zip(steps, _by_forward(stacked[:, put_out[0]]), strict=True):
                step.set_totals(totals)
            summed = np.concatenate([_summed(stacked), NOT_COUNTED])[index[0]]  # -1 takes the added row
            add_counts(self._counts, summed)
        self._waiting.clear()

    def _add_known(
        self, steps: Sequence[Step], stacked: np.ndarray, index: np.ndarray, put_out: np.ndarray
    ) -> None:
        """The same without a look at each number."""
        # Not `@`: a library of matrix products may wake threads for it.
        totals = np.einsum("t,ftk->fk", put_out.astype(np.float64), stacked)
        totals[:, 4] = stacked[:, put_out, 4].max(axis=1, initial=0)
        for step, row in zip(steps, totals.tolist(), strict=True):
            step.set_totals(dict(zip(KINDS, row, strict=True)))
        summed = stacked.sum(axis=0)
        summed[:, 4] = stacked[:, :, 4].max(axis=0)
        add_counts(self._counts, np.concatenate([summed, NOT_COUNTED])[index])


def add_counts(counts: np.ndarray, added: np.ndarray) -> None:
    """Add counts in place and keep the largest magnitude; -1 only stays where neither has a number."""
    counted = np.maximum(added[..., :4], 0)
    both_unknown = (counts[..., :4] < 0) & (added[..., :4] < 0)
    counts[..., :4] = np.where(both_unknown, -1, np.maximum(counts[..., :4], 0) + counted)
    counts[..., 4] = np.maximum(counts[..., 4], added[..., 4])


def _summed(counts: np.ndarray) -> np.ndarray:
    """(forwards, tensors, kinds) -> (tensors, kinds); -1 where none was counted."""
    summed = np.where((counts < 0).all(axis=0), -1, np.maximum(counts, 0).sum(axis=0))
    summed[:, 4] = counts[:, :, 4].max(axis=0)
    return summed


def _by_forward(counts: np.ndarray) -> list[dict[str, float]]:
    """(forwards, distinct tensors, kinds) -> sums by kind of each forward.

    A tensor that passes through three modules counts once.
    """
    if not counts.shape[1]:
        return [dict.fromkeys(KINDS, 0.0) for _ in counts]
    summed = np.where(counts.min(axis=1) < 0, -1, counts.sum(axis=1))
    summed[:, 4] = counts[:, :, 4].max(axis=1)
    return [dict(zip(KINDS, row, strict=True)) for row in summed.tolist()]
