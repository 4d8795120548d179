"""What a watch reports: one Step per forward, its Rows, and the Totals over all forwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lab.rooms.nan.watch.count import KINDS
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
