"""Rows as lines for a terminal, without pandas, which takes 0.25 s to load."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lab.core.words import printable

ABSENT = "–"
UNITS = {
    **{unit: unit for unit in ("ns", "ms", "s")},
    "us": "µs",
    "bytes": "B",
    "mib": "MiB",
    "percent": "%",
    "j": "J",
    "w": "W",
    "gbps": "GB/s",
    "tflops": "TFLOP/s",
    "mhz": "MHz",
}


class Heading(NamedTuple):
    words: str
    unit: str


def rows_table(rows: Sequence[Mapping[str, Any]], *, width: int = 110) -> str:
    """Rows with their values by column name; a value may be missing; numbers stand right."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [[row.get(name) for row in rows] for name in names]
    numeric = [_all_numbers(values) for values in columns]
    texts = [_texts(values, right) for values, right in zip(columns, numeric, strict=True)]
    return lines_of(names, numeric, texts, width)


def lines_of(
    names: Sequence[str], numeric: Sequence[bool], texts: Sequence[Sequence[str]], width: int
) -> str:
    """Columns of texts as lines of at most `width`, numbers right aligned, no colour codes."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(names, numeric, strict=True):
        words, unit = heading(name)
        # Text, not str: rich reads [brackets] in a str as markup, and labels are hostile.
        header = Text(f"{words} {unit}".strip())
        table.add_column(header, justify="right" if right else "left", overflow="fold")
    for row in zip(*texts, strict=True):
        table.add_row(*(Text(printable(cell)) for cell in row))
    buffer = io.StringIO()
    Console(file=buffer, width=width, color_system=None, force_terminal=False).print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().strip("\n").splitlines())


def heading(column: str) -> Heading:
    """Split a column name into words and unit: `total_time_ms` is (`total time`, `ms`)."""
    words = column.split("_")
    for index in (len(words) - 1, 0):
        if len(words) > 1 and words[index] in UNITS:
            return Heading(" ".join(words[:index] + words[index + 1 :]), UNITS[words[index]])
    return Heading(" ".join(words), "")


def number(value: float, decimals: int) -> str:
    """A number with fixed decimals and, from 10 000 on, narrow spaces between thousands."""
    text = f"{value:,.{decimals}f}"
    return text.replace(",", "\u202f") if abs(value) >= 10_000 else text.replace(",", "")


def decimals_of(finite: Sequence[float]) -> int:
    """Four significant digits of the largest value, four decimals at most; none where all are whole."""
    largest = max(map(abs, finite), default=0.0)
    if not largest or all(value == round(value) for value in finite):
        return 0
    return min(4, max(0, 3 - math.floor(math.log10(largest))))


def _texts(values: Sequence[Any], numeric: bool) -> list[str]:
    if not numeric:
        return [ABSENT if value is None or value == "" else str(value) for value in values]
    decimals = decimals_of([value for value in values if value is not None and math.isfinite(value)])
    return [ABSENT if value is None or math.isnan(value) else number(value, decimals) for value in values]


def _all_numbers(values: Sequence[Any]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in present
    )
