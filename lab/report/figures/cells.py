"""A grid of coloured cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lab.report.figures.style import (
    WIDTH_IN,
    add_legend,
    figure_with_axes,
    row_labels,
    set_hover,
    styled,
)
from lab.report.palette import light


@dataclass(frozen=True)
class Cell:
    """One cell of a `cell_grid`: text, colour role, strength of the colour (0 to 1), hover text."""

    text: str
    role: str
    strength: float
    hover: str = ""


@styled
def cell_grid(
    rows: Sequence[str],
    columns: Sequence[str],
    cell: Callable[[int, int], Cell | None],
    *,
    legend: Mapping[str, str],
    width_in: float = WIDTH_IN,
) -> Figure:
    """A grid of coloured cells; `cell(row, column)` is None for no data; `legend` is words -> role."""
    figure, axes = figure_with_axes(0.75 + 0.3 * len(rows), width_in=width_in)
    ax = axes[0]
    for down in range(len(rows)):
        for across in range(len(columns)):
            content = cell(down, across)
            if content is not None:
                _draw_cell(ax, down, across, content)
    # A few columns stay at the left, because a cell needs no more room than its text.
    ax.set(xlim=(-0.5, max(len(columns), 6) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    ax.set_yticks(range(len(rows)), row_labels(rows, width_in))
    upright = len(columns) > 8
    ax.set_xticks(range(len(columns)), columns, rotation=90 if upright else 0)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines["bottom"].set_visible(False)
    if legend:
        add_legend(
            figure,
            {},
            [Patch(facecolor=light(role), alpha=0.6, label=words) for words, role in legend.items()],
        )
    return figure


def _draw_cell(ax: Axes, down: int, across: int, content: Cell) -> None:
    box = Rectangle(
        (across - 0.48, down - 0.44),
        0.96,
        0.88,
        facecolor=light(content.role),
        alpha=round(0.08 + 0.6 * content.strength, 3),
        linewidth=0,
    )
    set_hover(box, content.hover)
    ax.add_patch(box)
    ax.text(across, down, content.text, ha="center", va="center")
