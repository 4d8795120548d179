"""One report of `nsys stats` as columns of text, and the grouping that its numbers come from."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

import numpy as np

from lab.core.words import inert
from lab.stats import robust
from lab.stats.columns import grouped_rows

SPREAD = ("Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)")


@dataclass(frozen=True)
class Report:
    """One table: its columns by heading, each cell as nsys prints it. problems: what is left out."""

    columns: dict[str, list[str]]
    problems: tuple[str, ...] = ()

    def csv(self) -> str:
        """The report as nsys' CSV: lines end in a newline, quotes where a name needs them."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        rows = zip(*self.columns.values(), strict=True)
        writer.writerows([cell if cell[:1].isdigit() else inert(cell) for cell in row] for row in rows)
        return text.getvalue()


@dataclass(frozen=True)
class Groups:
    """Rows (n,) with equal keys, in the order of the keys: the first row (g,) of each group, the group of
    each row (n,)."""

    first_row: np.ndarray
    of_row: np.ndarray

    def figures(self, values: np.ndarray, rows: np.ndarray | slice = slice(None)) -> Figures:
        """Figures of integers (n,) per group, over the rows that count."""
        return Figures(robust.grouped(values[rows], self.of_row[rows], len(self.first_row)))


@dataclass(frozen=True)
class Figures:
    """Figures (g,) of the values in each group, by the names of `robust.grouped`."""

    by_name: dict[str, np.ndarray]

    @property
    def total(self) -> np.ndarray:
        return self.by_name["sum"].astype(np.int64)

    def by_total(self) -> np.ndarray:
        """The groups, the largest total first, equal ones in the order of their keys."""
        return np.argsort(-self.total, kind="stable")

    def counts(self, order: np.ndarray) -> list[str]:
        return numbers(self.by_name["count"][order])

    def spread(
        self, order: np.ndarray, heads: Iterable[str] = SPREAD, digits: int = 1, unit: int = 1
    ) -> dict[str, list[str]]:
        """Average, median, minimum, maximum and sample deviation (0 for one value), in `unit`; the extremes
        without digits for 1."""
        columns = {}
        for head, name in zip(heads, ("mean", "median", "min", "max", "std"), strict=True):
            values = self.by_name[name][order] / unit
            is_whole = unit == 1 and name in ("min", "max")
            columns[head] = fixed(
                np.nan_to_num(values) if name == "std" else values, 0 if is_whole else digits
            )
        return columns


def grouped(*keys: np.ndarray) -> Groups:
    """Group rows by the columns (n,) of `keys`."""
    return Groups(*grouped_rows(keys))


def labelled(text_of: Callable[..., str], *keys: np.ndarray) -> np.ndarray:
    """`text_of` the keys of each row (n,), asked once for equal ones."""
    groups = grouped(*keys)
    texts = [text_of(*key) for key in zip(*(key[groups.first_row].tolist() for key in keys), strict=True)]
    return np.array(texts, dtype=object)[groups.of_row]


def rounded(value: float, digits: int) -> str:
    """Rounds a half up, as SQL's ROUND does; Python's own formatting rounds an exact half to even."""
    return str(Decimal(float(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def fixed(values: np.ndarray, digits: int) -> list[str]:
    """Each number (n,) with these digits, "" for NaN."""
    return ["" if value != value else rounded(value, digits) for value in values.tolist()]


def numbers(values: np.ndarray) -> list[str]:
    """Each whole number (n,) as text."""
    return list(map(str, values.tolist()))


def recorded_numbers(values: np.ndarray) -> list[str]:
    """The same, "" for what was not recorded."""
    return ["" if value < 0 else str(value) for value in values.tolist()]


def megabytes(sizes: np.ndarray) -> list[str]:
    """Bytes (n,) as MB with three digits, "" for what was not recorded."""
    return list(labelled(lambda size: rounded(size / 1e6, 3) if size >= 0 else "", sizes))
