"""One report of `nsys stats` as text, and the grouping that its numbers come from."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np

from lab.core.words import plural
from lab.recordings.projection import Projection

SPREAD = ["Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)"]


@dataclass(frozen=True)
class Report:
    """One table as text: the header and the rows as nsys prints them. problems: what is left out."""

    name: str
    header: list[str]
    rows: list[list[str]]
    problems: tuple[str, ...] = ()

    def with_column(self, heading: str, cell: str) -> Report:
        """The report with one more column, the same in every row."""
        return replace(self, header=[*self.header, heading], rows=[[*row, cell] for row in self.rows])

    def csv(self) -> str:
        """The report as nsys' CSV: lines end in a newline, quotes where a name needs them."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows([map(_harmless, row) for row in self.rows])
        return text.getvalue()


_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def _harmless(cell: str) -> str:
    """A name that a spreadsheet would run as a formula, as text; nsys writes no such name itself."""
    return f"'{cell}" if cell[:1] in tuple("=+-@\t\r") and not _NUMBER.fullmatch(cell) else cell


@dataclass(frozen=True)
class _Groups:
    """Rows (n,) of one kind, grouped: `first`, a row of each group; the figures of its values, each (g,)."""

    first: np.ndarray
    of_row: np.ndarray
    total: np.ndarray
    count: np.ndarray
    avg: np.ndarray
    med: np.ndarray
    min: np.ndarray
    max: np.ndarray
    std: np.ndarray

    def spread(self, group: int, digits: int = 1, scale: int = 1) -> list[str]:
        """Average, median, minimum, maximum, standard deviation; the extremes without digits for scale 1."""
        ends = [self.min[group], self.max[group]]
        shown = [str(end) for end in ends] if scale == 1 else [rounded(end / scale, digits) for end in ends]
        avg, med, std = (rounded(values[group] / scale, digits) for values in (self.avg, self.med, self.std))
        return [avg, med, *shown, std]


def rounded(value: float, digits: int) -> str:
    """Rounds a half up, as SQL's ROUND does; Python's own formatting rounds an exact half to even."""
    return str(Decimal(float(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def grouped(values: np.ndarray, *keys: np.ndarray) -> _Groups:
    """Group values (n,) by the columns of `keys`; the deviation is that of a sample, 0 for a single value."""
    if len(values) == 0:
        none = np.empty(0, dtype=np.int64)
        return _Groups(none, none, none, none, none, none, none, none, none)
    _, first, of_row = np.unique(np.stack(keys, axis=1), axis=0, return_index=True, return_inverse=True)
    of_row = of_row.ravel()
    ordered = values[np.lexsort((values, of_row))]
    count = np.bincount(of_row)
    start = np.cumsum(count) - count
    total = np.add.reduceat(ordered, start)
    avg = total / count
    squares = np.add.reduceat((ordered - np.repeat(avg, count)) ** 2, start)
    return _Groups(
        first=first,
        of_row=of_row,
        total=total,
        count=count,
        avg=avg,
        med=(ordered[start + (count - 1) // 2] + ordered[start + count // 2]) / 2,
        min=ordered[start],
        max=ordered[start + count - 1],
        std=np.sqrt(squares / np.maximum(count - 1, 1)),
    )


def distinct_codes(texts: np.ndarray) -> np.ndarray:
    """A number (n,) for each text (n,), equal for equal ones."""
    codes: dict[str, int] = {}
    return np.array([codes.setdefault(text, len(codes)) for text in texts], dtype=np.int64)


def share_table(
    name: str, counted: str, last: Sequence[str], groups: _Groups, labels: Callable[[int], list[str]]
) -> Report:
    """Time (%), Total Time (ns), a count, the spread, labels: by total time, largest first."""
    whole = groups.total.sum()
    rows = []
    for group in by_total(groups, labels):
        share = 100 * groups.total[group] / whole if whole else 0.0
        figures = [
            rounded(share, 1),
            str(groups.total[group]),
            str(groups.count[group]),
            *groups.spread(group),
        ]
        rows.append(figures + labels(group))
    return Report(name, ["Time (%)", "Total Time (ns)", counted, *SPREAD, *last], rows)


def by_total(groups: _Groups, labels: Callable[[int], list[str]]) -> list[int]:
    return sorted(range(len(groups.total)), key=lambda group: (-groups.total[group], labels(group)))


def as_text(rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    return [[str(value) for value in row] for row in rows]


def unattributed_note(projection: Projection) -> tuple[str, ...]:
    lost = (projection.ops.api < 0) & projection.capture.kernels
    if not lost.any():
        return ()
    return (f"{plural(int(lost.sum()), 'kernel')} without a recorded API call",)
