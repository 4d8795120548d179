"""Begins and ends of slices, matched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from lab.core.words import plural


class Pairs(NamedTuple):
    """The events (rows) that begin and end each slice, and how many events have no partner."""

    rows: list[tuple[int, int]]
    open_begins: int
    lone_ends: int

    def problems(self) -> list[str]:
        problems = []
        if self.open_begins:
            problems.append(f"{plural(self.open_begins, 'slice')} without an end left out")
        if self.lone_ends:
            problems.append(f"{plural(self.lone_ends, 'end')} of slices without a beginning left out")
        return problems


def paired(track: Sequence[int], ts_ns: Sequence[int], begins: Sequence[bool]) -> Pairs:
    """The slices of events in the order of the file, by track.

    On a track in order of time an end closes the slice opened last. A writer that groups all begins before
    all ends gives times that go back: the k-th end belongs to the k-th begin where slices follow one another,
    as on a stream, else to the slice opened last.
    """
    rows_of: dict[int, list[int]] = defaultdict(list)
    for row, uuid in enumerate(track):
        rows_of[uuid].append(row)
    pairs: list[tuple[int, int]] = []
    open_begins = lone_ends = 0
    for rows in rows_of.values():
        if any(ts_ns[following] < ts_ns[row] for row, following in pairwise(rows)):
            if in_line := _in_line(rows, ts_ns, begins):
                pairs += in_line
                continue
            # Ends first, so that slices that touch do not nest.
            rows.sort(key=lambda row: (ts_ns[row], begins[row]))
        stack: list[int] = []
        for row in rows:
            if begins[row]:
                stack.append(row)
            elif stack:
                pairs.append((stack.pop(), row))
            else:
                lone_ends += 1
        open_begins += len(stack)
    return Pairs(pairs, open_begins, lone_ends)


def _in_line(rows: list[int], ts_ns: Sequence[int], begins: Sequence[bool]) -> list[tuple[int, int]]:
    """The k-th begin with the k-th end, if that makes slices that follow one another; else nothing."""
    by_time = sorted(rows, key=lambda row: ts_ns[row])
    opens, ends = ([row for row in by_time if begins[row] == kind] for kind in (True, False))
    if len(opens) != len(ends):
        return []
    times = [ts_ns[row] for pair in zip(opens, ends, strict=True) for row in pair]
    return list(zip(opens, ends, strict=True)) if times == sorted(times) else []
