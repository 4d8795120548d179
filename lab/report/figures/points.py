"""Values as points (distributions, lines, intervals, rooflines), and a grid of coloured cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter

from lab.report import light
from lab.report.figures.style import (
    MARKERS,
    SERIES,
    WIDTH_IN,
    add_legend,
    figure_with_axes,
    narrow_figure,
    row_labels,
    set_hover,
    styled,
)


@styled
def distributions(
    titles: Sequence[str],
    groups: Sequence[Mapping[str, np.ndarray]],
    *,
    axis: str,
    violins: bool = False,
) -> Figure:
    """A panel per title with a box (or violin) and every value of each group; empty groups say `no data`.

    Each panel's `groups` maps a label to its values (n,). Points are spread sideways in order, not at random.
    """
    figure = narrow_figure(3.9, across=len(titles))
    panels = figure.subplots(1, len(titles), squeeze=False, sharey=True)[0]
    for ax, title, group in zip(panels, titles, groups, strict=True):
        ax.set_title(title)
        ax.grid(axis="y")
        for position, values in enumerate(group.values()):
            _draw_distribution(ax, position, np.asarray(values, dtype=float), violins)
        labels = [
            f"{label}\n{f'n {len(values)}' if len(values) else 'no data'}" for label, values in group.items()
        ]
        ax.set_xticks(range(len(group)), labels, rotation=90 if len(group) > 12 else 0)
        ax.set_xlim(-0.6, len(group) - 0.4)
    panels[0].set_ylabel(axis)
    return figure


@styled
def lines(
    positions: Sequence[str], series: Mapping[str, np.ndarray], *, across: str, axis: str, title: str = ""
) -> Figure:
    """A line per series over shared positions; `series` maps its name to values [position], NaN a gap."""
    figure = narrow_figure(3.9)
    ax = figure.subplots()
    for index, (name, values) in enumerate(series.items()):
        role = SERIES[index % len(SERIES)]
        ax.plot(
            range(len(positions)), values, marker=MARKERS[index % len(MARKERS)], color=light(role), label=name
        )
    ax.set_xticks(range(len(positions)), positions)
    ax.set(xlabel=across, ylabel=axis, xlim=(-0.4, len(positions) - 0.6))
    ax.set_title(title)
    ax.grid(axis="y")
    figure.legend(loc="outside upper right", ncols=6)
    return figure


@styled
def ranges(
    labels: Sequence[str],
    spans: Sequence[tuple[float, float, float]],
    *,
    axis: str,
    reference: float,
    roles: Sequence[str],
    width_in: float = WIDTH_IN,
) -> Figure:
    """A dot with its interval per label, first on top; `spans` are (low, middle, high), NaN if unknown."""
    figure, axes = figure_with_axes(0.75 + 0.24 * len(labels), width_in=width_in)
    ax = axes[0]
    ax.axvline(reference, color=light("muted"), linewidth=1)
    for row, ((low, middle, high), role) in enumerate(zip(spans, roles, strict=True)):
        ax.plot([low, high], [row, row], color=light(role), linewidth=1.6)
        ax.plot([middle], [row], marker="o", markersize=4.5, color=light(role))
    ax.set_yticks(range(len(labels)), row_labels(labels, width_in))
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlabel(axis)
    ax.grid(axis="x")
    return figure


def _draw_distribution(ax: Axes, position: int, values: np.ndarray, violins: bool) -> None:
    values = values[np.isfinite(values)]
    if violins and len(np.unique(values)) > 1:
        drawn = ax.violinplot([values], positions=[position], widths=0.8, showextrema=False)
        for body in drawn["bodies"]:  # type: ignore[attr-defined]
            body.set(facecolor=light("computation"), alpha=0.35)
    elif len(values):
        ax.boxplot(
            [values], positions=[position], widths=0.55, showfliers=False, medianprops={"color": light("ink")}
        )
    # The golden ratio spreads neighbours far apart, so that no trend is drawn that is not there.
    sideways = 0.3 * (np.arange(len(values)) * 0.618034 % 1 - 0.5)
    ax.plot(position + sideways, values, ".", markersize=4, color=light("computation"), alpha=0.7)
    if violins and len(values):
        ax.plot(
            [position - 0.15, position + 0.15], [np.median(values)] * 2, color=light("ink"), linewidth=1.4
        )


@styled
def roofline(
    series: Mapping[str, Sequence[tuple[float, float, str]]],
    *,
    roofs: Mapping[str, tuple[float, float]],
    across: str,
    axis: str,
) -> Figure:
    """Points (intensity, rate, hover text) of each series on two logarithmic axes, under one roof per GPU.

    `roofs` maps a name to (highest rate, rate per unit of intensity): the lesser of both bounds any point.
    """
    figure = narrow_figure(4.4)
    ax = figure.subplots()
    ax.set(xscale="log", yscale="log", xlabel=across, ylabel=axis)
    intensities = [x for points in series.values() for x, _, _ in points]
    for name, (highest, slope) in roofs.items():
        knee = highest / slope
        low, high = min([*intensities, knee]) / 2, max([*intensities, knee]) * 3
        ax.plot([low, knee, high], [low * slope, highest, highest], color=light("muted"), linewidth=1)
        ax.annotate(name, (high, highest), ha="right", va="bottom", color=light("muted"))
    for index, (name, points) in enumerate(series.items()):
        role, marker = SERIES[index % len(SERIES)], MARKERS[index % len(MARKERS)]
        for number, (x, y, hover) in enumerate(points):
            label = name if number == 0 else None
            (dot,) = ax.plot([x], [y], marker=marker, color=light(role), linestyle="none", label=label)
            set_hover(dot, hover)
    for side in (ax.xaxis, ax.yaxis):  # plain numbers: powers would be drawn as TeX
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        side.set_minor_formatter(NullFormatter())
    ax.grid(which="major")
    figure.legend(loc="outside upper right", ncols=6)
    return figure


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
