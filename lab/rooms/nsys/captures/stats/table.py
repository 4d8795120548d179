"""One report of `nsys stats` as text, and the grouping that its numbers come from."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal

import numpy as np

from lab.core.words import inert, plural
from lab.recordings.projection import Projection
from lab.stats import robust
from lab.stats.columns import grouped_rows

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
        writer.writerows([cell if cell[:1].isdigit() else inert(cell) for cell in row] for row in self.rows)
        return text.getvalue()


@dataclass(frozen=True)
class _Groups:
    """Rows (n,) of one kind, grouped: `first_row` of each group; the figures of its values, each (g,)."""

    first_row: np.ndarray
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
    """Group integers (n,) by the columns of `keys`; the sample deviation is 0 for a single value."""
    first_row, of_row = grouped_rows(keys)
    figures = robust.grouped(values, of_row, len(first_row))
    total, shortest, longest = (figures[name].astype(np.int64) for name in ("sum", "min", "max"))
    return _Groups(
        first_row=first_row,
        of_row=of_row,
        total=total,
        count=figures["count"],
        avg=figures["mean"],
        med=figures["median"],
        min=shortest,
        max=longest,
        std=np.nan_to_num(figures["std"]),
    )


@dataclass(frozen=True)
class Labels:
    """A text for each row, as a code (n,) into the distinct `texts` (k,): many rows, few names."""

    texts: np.ndarray
    codes: np.ndarray

    def __getitem__(self, row: int) -> str:
        text: str = self.texts[self.codes[row]]
        return text

    def take(self, rows: np.ndarray) -> Labels:
        return Labels(self.texts, self.codes[rows])

    def column(self) -> list[str]:
        """The texts (n,)."""
        column: list[str] = self.texts[self.codes].tolist()
        return column


def labelled(text_of: Callable[..., str], *keys: np.ndarray) -> Labels:
    """`text_of` the keys of each row (n,), asked once for equal ones; equal texts have equal codes."""
    if not len(keys[0]):
        return Labels(np.empty(0, dtype=object), np.empty(0, dtype=np.int64))
    first_row, group = grouped_rows(keys)
    codes: dict[str, int] = {}
    texts = [text_of(*key) for key in zip(*(key[first_row].tolist() for key in keys), strict=True)]
    code_of = np.array([codes.setdefault(text, len(codes)) for text in texts], dtype=np.int64)
    return Labels(np.array(list(codes), dtype=object), code_of[group])


def share_table(
    name: str, counted: str, heads: Sequence[str], groups: _Groups, labels: Callable[[int], list[str]]
) -> Report:
    """Time (%), Total Time (ns), a count, the spread, labels: by total time, largest first."""
    total_ns = groups.total.sum()
    rows = []
    for group in by_total(groups, labels):
        share = rounded(100 * groups.total[group] / total_ns if total_ns else 0.0, 1)
        figures = [share, str(groups.total[group]), str(groups.count[group]), *groups.spread(group)]
        rows.append(figures + labels(group))
    return Report(name, ["Time (%)", "Total Time (ns)", counted, *SPREAD, *heads], rows)


def by_total(groups: _Groups, labels: Callable[[int], list[str]]) -> list[int]:
    return sorted(range(len(groups.total)), key=lambda group: (-groups.total[group], labels(group)))


def numbers(values: np.ndarray) -> list[str]:
    """Each whole number (n,) as text."""
    return list(map(str, values.tolist()))


def recorded_numbers(values: np.ndarray) -> list[str]:
    """The same, "" for what was not recorded."""
    return ["" if value < 0 else str(value) for value in values.tolist()]


def megabytes(sizes: np.ndarray) -> list[str]:
    """Bytes (n,) as MB with three digits, "" for what was not recorded."""
    return labelled(lambda size: rounded(size / 1e6, 3) if size >= 0 else "", sizes).column()


def table_of(name: str, columns: Mapping[str, Sequence[str]]) -> Report:
    """A report from its columns, each (n,)."""
    return Report(name, list(columns), list(map(list, zip(*columns.values(), strict=True))))


def unattributed_note(projection: Projection) -> tuple[str, ...]:
    lost = (projection.ops.api < 0) & projection.capture.kernels
    if not lost.any():
        return ()
    return (f"{plural(int(lost.sum()), 'kernel')} without a recorded API call",)
