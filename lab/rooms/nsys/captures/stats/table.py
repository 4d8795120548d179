"""One report of `nsys stats` as text, and the sums that its numbers come from."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import pandas as pd

from lab.core.words import inert, plural
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
        writer.writerows([cell if cell[:1].isdigit() else inert(cell) for cell in row] for row in self.rows)
        return text.getvalue()


def rounded(value: float, digits: int) -> str:
    """Rounds a half up, as SQL's ROUND does; Python's own formatting rounds an exact half to even."""
    return str(Decimal(float(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def summed(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """A row per group with equal `by`, in their order: total, size, avg, med, min, max and std of `ns`.

    The deviation is that of a sample, 0 for a single value.
    """
    groups = frame.groupby(by)["ns"]
    table: Any = groups.agg(total="sum", size="size", med="median", min="min", max="max")
    table.insert(2, "avg", table["total"] / table["size"])
    squares = (frame["ns"] - groups.transform("sum") / groups.transform("size")) ** 2
    squares = squares.groupby([frame[name] for name in by]).sum()
    table["std"] = np.sqrt(squares / np.maximum(table["size"] - 1, 1))
    with_keys: pd.DataFrame = table.reset_index()
    return with_keys


def rows_of(table: pd.DataFrame) -> Iterable[Any]:
    """Rows of `summed`, as named tuples."""
    return table.itertuples()


def spread(row: Any, digits: int = 1, scale: int = 1) -> list[str]:
    """Average, median, minimum, maximum, standard deviation; the extremes without digits for scale 1."""
    ends = [str(end) if scale == 1 else rounded(end / scale, digits) for end in (row.min, row.max)]
    avg, med, std = (rounded(value / scale, digits) for value in (row.avg, row.med, row.std))
    return [avg, med, *ends, std]


def by_total(frame: pd.DataFrame, labels: list[str]) -> pd.DataFrame:
    """`summed` by the labels, the largest total first."""
    ascending = [False, *(True for _ in labels)]
    ordered: pd.DataFrame = summed(frame, labels).sort_values(["total", *labels], ascending=ascending)
    return ordered


def share_table(name: str, counted: str, frame: pd.DataFrame, labels: list[str]) -> Report:
    """Time (%), Total Time (ns), a count, the spread, labels: by total time, largest first."""
    table = by_total(frame, labels)
    total_ns = table["total"].sum()
    rows = []
    for row, texts in zip(rows_of(table), table[labels].to_numpy().tolist(), strict=True):
        share = rounded(100 * row.total / total_ns if total_ns else 0.0, 1)
        rows.append([share, str(row.total), str(row.size), *spread(row), *texts])
    return Report(name, ["Time (%)", "Total Time (ns)", counted, *SPREAD, *labels], rows)


def labelled(text_of: Callable[..., str], *keys: np.ndarray) -> np.ndarray:
    """`text_of` the keys of each row (n,) as objects, asked once for equal ones."""
    columns = list(range(len(keys)))
    group = pd.DataFrame(dict(enumerate(keys))).groupby(columns).ngroup().to_numpy()
    first_rows = np.unique(group, return_index=True)[1]
    texts = [text_of(*key) for key in zip(*(key[first_rows].tolist() for key in keys), strict=True)]
    labels: np.ndarray = np.array([*texts, ""], dtype=object)[group]
    return labels


def numbers(values: np.ndarray) -> list[str]:
    """Each whole number (n,) as text."""
    return list(map(str, values.tolist()))


def recorded_numbers(values: np.ndarray) -> list[str]:
    """The same, "" for what was not recorded."""
    return ["" if value < 0 else str(value) for value in values.tolist()]


def megabytes(sizes: np.ndarray) -> list[str]:
    """Bytes (n,) as MB with three digits, "" for what was not recorded."""
    return list(labelled(lambda size: rounded(size / 1e6, 3) if size >= 0 else "", sizes))


def table_of(name: str, columns: Mapping[str, Sequence[str]], problems: tuple[str, ...] = ()) -> Report:
    """A report from its columns, each (n,)."""
    return Report(name, list(columns), list(map(list, zip(*columns.values(), strict=True))), problems)


def unattributed_note(projection: Projection) -> tuple[str, ...]:
    lost = (projection.ops.api < 0) & projection.capture.kernels
    if not lost.any():
        return ()
    return (f"{plural(int(lost.sum()), 'kernel')} without a recorded API call",)
