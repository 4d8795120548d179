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

    earliest: np.ndarray
    latest: np.ndarray
    num_matched: int

    @property
    def sure(self) -> np.ndarray:
        sure: np.ndarray = (self.earliest >= 0) & (self.earliest == self.latest)
        return sure


def places(part: np.ndarray, captured: np.ndarray, lane: np.ndarray | None = None) -> Places:
    """Places of the words `part` (k,) in `whole` (m,), both ints.

    lane (k,): the stream of each row; rows keep their order within a lane only. Without it all are one lane.
    """
    if lane is not None and len(np.unique(lane)) > 1:
        return _in_lanes(part, captured, lane)
    positions = _positions(captured)
    allowed = [positions.get(word, []) for word in part.tolist()]
    embedding = _embedded(allowed)
    if embedding is not None:
        return Places(*embedding, num_matched=len(part))
    return _common(part, captured)


def _positions(captured: np.ndarray) -> dict[int, list[int]]:
    positions: dict[int, list[int]] = defaultdict(list)
    for index, word in enumerate(captured.tolist()):
        positions[word].append(index)
    return positions


def _embedded(allowed: list[list[int]]) -> tuple[np.ndarray, np.ndarray] | None:
    """The earliest and the latest strictly increasing choice, one of each row's `allowed`; None for none."""
    earliest, latest = np.empty(len(allowed), dtype=np.int64), np.empty(len(allowed), dtype=np.int64)
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


def _in_lanes(part: np.ndarray, captured: np.ndarray, lane: np.ndarray) -> Places:
    """Each lane is embedded by itself; what one lane holds for certain is taken from the others.

    A name that is complete and runs in one lane only stands at its own places, one after the other.
    """
    positions = _positions(captured)
    allowed = [positions.get(word, []) for word in part.tolist()]
    _pin_complete_names(part, lane, positions, allowed)
    lanes = [np.flatnonzero(lane == one) for one in np.unique(lane)]
    earliest, latest = np.full(len(part), -1, dtype=np.int64), np.full(len(part), -1, dtype=np.int64)
    num_certain = -1
    while True:
        for rows in lanes:
            embedding = _embedded([allowed[row] for row in rows.tolist()])
            if embedding is None:
                return Places(np.full(len(part), -1), np.full(len(part), -1), num_possible(part, captured))
            earliest[rows], latest[rows] = embedding
        certain = np.flatnonzero(earliest == latest)
        if len(np.unique(earliest[certain])) < len(certain):  # two lanes claim one launch: not this capture
            return Places(np.full(len(part), -1), np.full(len(part), -1), num_possible(part, captured))
        if len(certain) == num_certain:
            return Places(earliest, latest, len(part))
        num_certain = len(certain)
        taken = set(earliest[certain].tolist())
        certain_rows = set(certain.tolist())
        for row, choices in enumerate(allowed):
            low, high = int(earliest[row]), int(latest[row])
            allowed[row] = (
                [low]
                if row in certain_rows
                else [one for one in choices if low <= one <= high and one not in taken]
            )


def _pin_complete_names(
    part: np.ndarray, lane: np.ndarray, positions: dict[int, list[int]], allowed: list[list[int]]
) -> None:
    for word in np.unique(part).tolist():
        rows = np.flatnonzero(part == word)
        captured_positions = positions.get(word, [])
        if len(rows) == len(captured_positions) and len(np.unique(lane[rows])) == 1:
            for row, position in zip(rows.tolist(), captured_positions, strict=True):
                allowed[row] = [position]


def num_possible(part: np.ndarray, captured: np.ndarray) -> int:
    """Rows that the capture could hold, by number of each name."""
    words, counts = np.unique(part, return_counts=True)
    captured_words, numbers = np.unique(captured, return_counts=True)
    _, index, captured_index = np.intersect1d(words, captured_words, assume_unique=True, return_indices=True)
    return int(np.minimum(counts[index], numbers[captured_index]).sum())


def _common(part: np.ndarray, captured: np.ndarray) -> Places:
    """Places in every longest common subsequence: first and last of all; none if some leave the row out."""
    none = np.full(len(part), -1, dtype=np.int64)
    if len(part) * len(captured) > MAX_CELLS:
        return Places(none, none.copy(), num_possible(part, captured))
    ahead = _lengths(part, captured)
    behind = _lengths(part[::-1], captured[::-1])[::-1, ::-1]
    longest = int(ahead[-1, -1])
    earliest, latest = none, none.copy()
    for row, word in enumerate(part.tolist()):
        through = (captured == word) & (ahead[row, :-1] + behind[row + 1, 1:] + 1 == longest)
        if through.any() and not (ahead[row] + behind[row + 1] == longest).any():
            possible = np.flatnonzero(through)
            earliest[row], latest[row] = possible[0], possible[-1]
    return Places(earliest, latest, longest)


def _lengths(part: np.ndarray, captured: np.ndarray) -> np.ndarray:
    """Length (k + 1, m + 1) of the longest common subsequence of the first rows and columns."""
    best: np.ndarray = np.zeros((len(part) + 1, len(captured) + 1), dtype=np.int32)
    for row, word in enumerate(part.tolist()):
        step = np.maximum(best[row, 1:], best[row, :-1] + (captured == word))
        np.maximum.accumulate(step, out=best[row + 1, 1:])
    return best
