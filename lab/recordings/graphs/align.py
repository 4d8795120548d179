"""Where the rows of a replay stand in the captured sequence, and of which rows that is certain.

A replay that lost rows is a subsequence of its capture. It can be embedded as early as possible and as late
as possible; the true place of each row lies between the two, so where both agree it is certain.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Places:
    """For each row (k,): earliest and latest possible position, -1 for none."""

    earliest: np.ndarray
    latest: np.ndarray

    @property
    def sure(self) -> np.ndarray:
        """Mask (k,): the row can be nowhere else."""
        sure: np.ndarray = (self.earliest >= 0) & (self.earliest == self.latest)
        return sure


def places(part: np.ndarray, captured: np.ndarray, lane: np.ndarray) -> Places | None:
    """Places of the words `part` (k,) in `captured` (m,); None where they stand in another order.

    lane (k,): the stream of each row; rows keep their order within a lane only. A word that was not captured
    has no place. A word that is complete and runs in one lane only stands at its own places, in their order.
    """
    positions: dict[int, list[int]] = defaultdict(list)
    for index, word in enumerate(captured.tolist()):
        positions[word].append(index)
    allowed = [positions[word] for word in part.tolist()]
    for word in np.unique(part).tolist():
        rows = np.flatnonzero(part == word)
        if len(rows) == len(positions[word]) and len(np.unique(lane[rows])) == 1:
            for row, position in zip(rows.tolist(), positions[word], strict=True):
                allowed[row] = [position]
    earliest, latest = np.full(len(part), -1), np.full(len(part), -1)
    is_captured = np.isin(part, captured)
    for number in np.unique(lane).tolist():
        rows = np.flatnonzero((lane == number) & is_captured)
        embedding = _embedded([allowed[row] for row in rows.tolist()])
        if embedding is None:
            return None
        earliest[rows], latest[rows] = embedding
    result = Places(earliest, latest)
    certain = earliest[result.sure]  # where two lanes claim one launch, it is not this capture
    return result if len(np.unique(certain)) == len(certain) else None


def _embedded(allowed: list[list[int]]) -> tuple[list[int], list[int]] | None:
    """The earliest and the latest strictly increasing choice, one of each row's `allowed`; None for none."""
    earliest, latest = [0] * len(allowed), [0] * len(allowed)
    position = -1
    for row, choices in enumerate(allowed):
        index = bisect_right(choices, position)
        if index == len(choices):
            return None
        position = earliest[row] = choices[index]
    position = 1 << 62
    for row in range(len(allowed) - 1, -1, -1):
        position = latest[row] = allowed[row][bisect_left(allowed[row], position) - 1]
    return earliest, latest
