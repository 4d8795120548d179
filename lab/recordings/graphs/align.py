"""Where the rows of a replay stand in the captured sequence, and of which rows that is certain.

A replay that lost rows is a subsequence of its capture. It can be embedded as early as possible and as late
as possible; the true place of each row lies between the two, so where both agree it is certain.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

# Cells of the table of a longest common subsequence: 2 tables of 32 MiB. Beyond, nothing is certain.
MAX_CELLS = 8 << 20


@dataclass(frozen=True)
class Places:
    """For each row (k,): earliest and latest possible position, -1 for none; sure: it can be nowhere else.

    num_matched: rows that stand in the capture at the same time, at most.
    """

    first: np.ndarray
    last: np.ndarray
    num_matched: int

    @property
    def sure(self) -> np.ndarray:
        found: np.ndarray = (self.first >= 0) & (self.first == self.last)
        return found


def places(part: np.ndarray, whole: np.ndarray, lane: np.ndarray | None = None) -> Places:
    """Places of the words `part` (k,) in `whole` (m,), both ints.

    lane (k,): the stream of each row; rows keep their order within a lane only. Without it all are one lane.
    """
    if lane is not None and len(np.unique(lane)) > 1:
        return _in_lanes(part, whole, lane)
    positions = _positions(whole)
    allowed = [positions.get(word, []) for word in part.tolist()]
    found = _embedded(allowed)
    if found is not None:
        return Places(*found, num_matched=len(part))
    return _common(part, whole)


def _positions(whole: np.ndarray) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for index, word in enumerate(whole.tolist()):
        found[word].append(index)
    return found


def _embedded(allowed: list[list[int]]) -> tuple[np.ndarray, np.ndarray] | None:
    """The earliest and the latest strictly increasing choice, one of each row's `allowed`; None for none."""
    first, last = np.empty(len(allowed), dtype=np.int64), np.empty(len(allowed), dtype=np.int64)
    at = -1
    for row, choices in enumerate(allowed):
        index = bisect_right(choices, at)
        if index == len(choices):
            return None
        at = first[row] = choices[index]
    at = 1 << 62
    for row in range(len(allowed) - 1, -1, -1):
        at = last[row] = allowed[row][bisect_left(allowed[row], at) - 1]
    return first, last


def _in_lanes(part: np.ndarray, whole: np.ndarray, lane: np.ndarray) -> Places:
    """Each lane is embedded by itself; what one lane holds for certain is taken from the others.

    A name that is complete and runs in one lane only stands at its own places, one after the other.
    """
    positions = _positions(whole)
    allowed = [positions.get(word, []) for word in part.tolist()]
    _pin_complete_names(part, lane, positions, allowed)
    lanes = [np.flatnonzero(lane == one) for one in np.unique(lane)]
    first, last = np.full(len(part), -1, dtype=np.int64), np.full(len(part), -1, dtype=np.int64)
    num_certain = -1
    while True:
        for rows in lanes:
            found = _embedded([allowed[row] for row in rows.tolist()])
            if found is None:
                return Places(np.full(len(part), -1), np.full(len(part), -1), num_possible(part, whole))
            first[rows], last[rows] = found
        certain = np.flatnonzero(first == last)
        if len(np.unique(first[certain])) < len(certain):  # two lanes claim one launch: not this capture
            return Places(np.full(len(part), -1), np.full(len(part), -1), num_possible(part, whole))
        if len(certain) == num_certain:
            return Places(first, last, len(part))
        num_certain = len(certain)
        taken = set(first[certain].tolist())
        done = set(certain.tolist())
        for row, choices in enumerate(allowed):
            low, high = int(first[row]), int(last[row])
            allowed[row] = (
                [low] if row in done else [one for one in choices if low <= one <= high and one not in taken]
            )


def _pin_complete_names(
    part: np.ndarray, lane: np.ndarray, positions: dict[int, list[int]], allowed: list[list[int]]
) -> None:
    for word in np.unique(part).tolist():
        rows = np.flatnonzero(part == word)
        there = positions.get(word, [])
        if len(rows) == len(there) and len(np.unique(lane[rows])) == 1:
            for row, position in zip(rows.tolist(), there, strict=True):
                allowed[row] = [position]


def num_possible(part: np.ndarray, whole: np.ndarray) -> int:
    """Rows that the capture could hold, by number of each name."""
    words, counts = np.unique(part, return_counts=True)
    there, numbers = np.unique(whole, return_counts=True)
    _, mine, theirs = np.intersect1d(words, there, assume_unique=True, return_indices=True)
    return int(np.minimum(counts[mine], numbers[theirs]).sum())


def _common(part: np.ndarray, whole: np.ndarray) -> Places:
    """Places in every longest common subsequence: first and last of all; none if some leave the row out."""
    none = np.full(len(part), -1, dtype=np.int64)
    if len(part) * len(whole) > MAX_CELLS:
        return Places(none, none.copy(), num_possible(part, whole))
    ahead = _lengths(part, whole)
    behind = _lengths(part[::-1], whole[::-1])[::-1, ::-1]
    longest = int(ahead[-1, -1])
    first, last = none, none.copy()
    for row, word in enumerate(part.tolist()):
        through = (whole == word) & (ahead[row, :-1] + behind[row + 1, 1:] + 1 == longest)
        if through.any() and not (ahead[row] + behind[row + 1] == longest).any():
            found = np.flatnonzero(through)
            first[row], last[row] = found[0], found[-1]
    return Places(first, last, longest)


def _lengths(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Length (k + 1, m + 1) of the longest common subsequence of the first rows and columns."""
    best: np.ndarray = np.zeros((len(part) + 1, len(whole) + 1), dtype=np.int32)
    for row, word in enumerate(part.tolist()):
        step = np.maximum(best[row, 1:], best[row, :-1] + (whole == word))
        np.maximum.accumulate(step, out=best[row + 1, 1:])
    return best
