"""Look up key figures over runs, and compare them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.serve.rows import Figure, RunRow, text_of


def figure_labels(rows: Iterable[RunRow]) -> list[str]:
    """Labels of numeric figures, those of most runs first."""
    counts: dict[str, int] = {}
    for row in rows:
        for label in {figure.label for figure in row.figures if figure.value is not None}:
            counts[label] = counts.get(label, 0) + 1
    return sorted(counts, key=lambda label: (-counts[label], label))[:40]


def figure_of(row: RunRow, label: str) -> Figure | None:
    return next((figure for figure in row.figures if figure.label == label), None)


def unit_of(rows: Iterable[RunRow], label: str) -> str:
    """The unit in which most of these runs give the figure."""
    counts: dict[str, int] = {}
    for row in rows:
        if (figure := figure_of(row, label)) and figure.value is not None:
            counts[figure.unit] = counts.get(figure.unit, 0) + 1
    return max(counts, key=lambda unit: (counts[unit], unit), default="")


def value_of(row: RunRow, label: str, unit: str) -> float | None:
    """None without the figure, and for one in another unit: numbers of two units are not compared."""
    figure = figure_of(row, label)
    return figure.value if figure and figure.unit == unit else None


def is_elsewhere(row: RunRow, label: str, unit: str) -> bool:
    """Whether a run has this figure as a number in another unit."""
    figure = figure_of(row, label)
    return figure is not None and figure.value is not None and figure.unit != unit


def setting_of(row: RunRow) -> str:
    """Room and configuration as text: runs that agree in it repeat each other."""
    config = ", ".join(f"{name} {value}" for name, value in config_of(row).items())
    return f"{row.room}: {config or 'no configuration recorded'}"[:300]


def config_of(row: RunRow) -> dict[str, str]:
    """The configuration without the seed, which differs between repeats."""
    return {name: text_of(value) for name, value in row.config.items() if name != "seed"}


@dataclass(frozen=True)
class FigureLine:
    """One figure of several runs; changes are against the first run, "" where numbers cannot be compared."""

    label: str
    figures: list[Figure | None]
    changes: list[str]


def figure_lines(rows: Sequence[RunRow]) -> list[FigureLine]:
    labels = dict.fromkeys(figure.label for row in rows for figure in row.figures)
    return [_line(rows, label) for label in labels]


def _line(rows: Sequence[RunRow], label: str) -> FigureLine:
    figures = [figure_of(row, label) for row in rows]
    return FigureLine(label, figures, [_change(figures[0], figure) for figure in figures])


def _change(base: Figure | None, head: Figure | None) -> str:
    """`+12.5 %`; of shares the difference in points, because a percentage of a percentage reads as either."""
    if not base or not head or base.value is None or head.value is None or head.unit != base.unit:
        return ""
    if head.unit == "%":
        return f"{head.value - base.value:+.3g} points"
    return f"{100 * (head.value / base.value - 1):+.1f} %" if base.value else ""
