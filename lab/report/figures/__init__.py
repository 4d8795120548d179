"""Figures in one style: drawn once by matplotlib, saved as PNG and as SVG in the colours of the page."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from lab.report import light
from lab.report.figures.points import Cell, cell_grid, distributions, lines, ranges, roofline
from lab.report.figures.style import (
    PHONE_IN,
    SERIES,
    WIDTH_IN,
    add_legend,
    figure_with_axes,
    row_labels,
    save,
    save_png,
    set_hover,
    styled,
)

__all__ = [
    "SERIES",
    "Cell",
    "cell_grid",
    "distributions",
    "lines",
    "ranges",
    "roofline",
    "save",
    "save_png",
    "stacked_bars",
    "stacked_panels",
    "timeline",
    "waterfall",
]


# Bars: stacked, alone and as small multiples; waterfalls, from one value to another; on rows over time.

ENDS, MORE, LESS = "computation", "fail", "ok"  # colour roles of a waterfall
_RECTANGLE = np.array([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], dtype=np.uint8)


@styled
def stacked_bars(
    labels: Sequence[str],
    parts: Mapping[str, np.ndarray],
    *,
    axis: str,
    marks: Sequence[tuple[float, float, float]] = (),
    mark_label: str = "",
    words: Mapping[str, str] | None = None,
) -> Figure:
    """Horizontal bars, one per label, first on top; `parts` is colour role -> lengths of shape [label].

    `marks` holds (low, middle, high) per label, drawn as a whisker with a diamond and named `mark_label`;
    `words` gives the legend other words than the roles.
    """
    height_in = 0.75 + 0.3 * len(labels)
    figure, axes = figure_with_axes(height_in)
    ax = axes[0]
    _stack(ax, labels, parts)
    for row, (low, middle, high) in enumerate(marks):
        ax.plot([low, high], [row, row], color=light("ink"), linewidth=1)
        label = mark_label if row == 0 else None
        ax.plot(
            [middle], [row], marker="D", markersize=4.5, color=light("ink"), linestyle="none", label=label
        )
    ax.set_xlabel(axis)
    add_legend(figure, parts, ax.get_legend_handles_labels()[0], words)
    return figure


@styled
def stacked_panels(
    titles: Sequence[str],
    labels: Sequence[Sequence[str]],
    parts: Sequence[Mapping[str, np.ndarray]],
    *,
    axis: str,
    words: Mapping[str, str] | None = None,
    width_in: float = WIDTH_IN,
) -> Figure:
    """Small multiples of stacked bars on one scale; each panel's `parts` is as in `stacked_bars`.

    words: what a role is called in the legend, where that is not its own name.
    """
    across = max(1, min(int(4 * width_in / WIDTH_IN), len(titles)))
    down = -(-len(titles) // across)
    tallest = max(len(panel) for panel in labels)
    figure, axes = figure_with_axes(0.6 + down * (0.45 + 0.17 * tallest), down, across, width_in=width_in)
    for ax, title, panel_labels, panel in zip(axes, titles, labels, parts, strict=False):
        _stack(ax, panel_labels, panel, title=title)
        ax.set_title(title)
    for ax in axes[len(titles) :]:
        ax.set_visible(False)
    for ax in axes[max(0, len(titles) - across) : len(titles)]:
        ax.set_xlabel(axis)
    add_legend(figure, parts[0], [], words)
    return figure


def _stack(ax: Axes, labels: Sequence[str], parts: Mapping[str, np.ndarray], title: str = "") -> None:
    left = np.zeros(len(labels))
    for role, lengths in parts.items():
        lengths = np.nan_to_num(np.asarray(lengths, dtype=float))
        bars = ax.barh(
            range(len(labels)),
            lengths,
            left=left,
            height=0.72,
            color=light(role),
            edgecolor=light("paper"),
            linewidth=0.5,
        )
        for bar, label, length in zip(bars, labels, lengths, strict=True):
            set_hover(bar, f"{title} {label}: {role} {length:.4g}".strip())
        left = left + lengths
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.grid(axis="x")


@styled
def waterfall(
    begin: tuple[str, float],
    parts: Sequence[tuple[str, float]],
    end: str,
    *,
    axis: str,
    words: tuple[str, str, str] = ("value", "more", "less"),
    width_in: float = WIDTH_IN,
) -> Figure:
    """Bars from top to bottom: `begin` (label, value), each of `parts` (label, change) where the one before
    ended, and their sum, named `end`. words name the ends, rises and falls. On a phone's width a label stands
    above its bar.
    """
    changes = np.array([change for _, change in parts], dtype=float)
    steps = begin[1] + np.cumsum(changes)
    starts = np.concatenate([[begin[1]], steps[:-1]]) if len(parts) else steps
    total = steps[-1] if len(parts) else begin[1]
    labels = [begin[0], *(label for label, _ in parts), end]
    left = np.concatenate([[0.0], np.minimum(starts, steps), [0.0]])
    length = np.concatenate([[begin[1]], np.abs(changes), [total]])
    roles = [ENDS, *(MORE if change > 0 else LESS for change in changes), ENDS]
    above = width_in <= PHONE_IN
    figure, (ax,) = figure_with_axes(0.9 + (0.48 if above else 0.3) * len(labels), width_in=width_in)
    thick = 0.42 if above else 0.66
    bars = ax.barh(range(len(labels)), length, left=left, height=thick, color=[light(role) for role in roles])
    _write_values(ax, bars, labels, [begin[1], *changes.tolist(), total], left + length)
    edges = np.concatenate([[begin[1]], steps])
    for row, value in enumerate(edges):  # the level that the next bar starts from
        span = [row + thick / 2, row + 1 - thick / 2]
        ax.plot([value, value], span, color=light("muted"), linewidth=0.7, zorder=0)
    ax.set_yticks([] if above else range(len(labels)), [] if above else labels)
    ax.set_ylim(len(labels) - 0.5, -0.85 if above else -0.5)
    low, high = _limits(edges, begin[1], room_for=0.3 if above else 0.12)
    ax.set_xlim(low, high)
    for row, label in enumerate(labels if above else ()):
        paper = {"facecolor": light("paper"), "edgecolor": "none", "pad": 0.5}
        ax.text(low, row - thick / 2 - 0.06, label, ha="left", va="bottom", bbox=paper)
    ax.set_xlabel(axis)
    ax.grid(axis="x")
    add_legend(
        figure,
        dict.fromkeys((ENDS, MORE, LESS), changes),
        [],
        dict(zip((ENDS, MORE, LESS), words, strict=True)),
    )
    return figure


def _write_values(
    ax: Axes, bars: Sequence[Any], labels: Sequence[str], values: Sequence[float], ends: np.ndarray
) -> None:
    """Each bar's value at its end; of all but the first and last with its sign."""
    for row, (bar, label, value) in enumerate(zip(bars, labels, values, strict=True)):
        text = f"{value:,.1f}" if row in (0, len(labels) - 1) else f"{value:+,.1f}"
        set_hover(bar, f"{label}: {text}")
        place: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(text, (ends[row], row), color=light("muted"), **place)


def _limits(edges: np.ndarray, begin: float, room_for: float) -> tuple[float, float]:
    """From zero if the changes are a visible part of the values, else around the changes alone; `room_for` is
    the share of the width that a bar's figure takes beside it."""
    low, high = float(edges.min()), float(edges.max())
    room = max(high - low, abs(begin) * 1e-6, 1e-9)
    if room > 0.05 * abs(high):
        return min(0.0, low - 0.02 * room), high + room_for * max(high, room)
    return low - 0.3 * room, high + max(0.3, 2 * room_for) * room


@styled
def timeline(
    rows: Sequence[str],
    parts: Mapping[tuple[str, str], np.ndarray],
    *,
    span: tuple[float, float],
    bands: Sequence[tuple[str, float, float]],
    shades: Sequence[tuple[int, float, float]],
    axis: str,
    arrows: Sequence[tuple[float, int, int]] = (),
    width_in: float = WIDTH_IN,
) -> Figure:
    """Bars on one row per label, first on top.

    `parts` maps (words, colour role) to bars (n, 4): row, start, length, strength of the colour (0 to 1).
    `bands` are (name, start, end), tinted in turn and named above where there is room; `shades` are (row,
    start, end); `arrows` point at (time, from row, to row).
    """
    figure, axes = figure_with_axes(1.2 + 0.3 * len(rows), width_in=width_in)
    ax = axes[0]
    for index, (name, start, end) in enumerate(bands):
        ax.axvspan(start, end, facecolor=light("rule"), alpha=0.5 if index % 2 == 0 else 0.2, linewidth=0)
        if (min(end, span[1]) - max(start, span[0])) > len(name) * 0.009 * (WIDTH_IN / width_in) * (
            span[1] - span[0]
        ):
            middle = (max(start, span[0]) + min(end, span[1])) / 2
            ax.text(middle, -0.75, name, ha="center", va="bottom", color=light("muted"))
    if shades:
        boxes = np.array([(row, start, end - start, 0.14) for row, start, end in shades])
        _add(ax, _bars(boxes, 0.5, light("fail")))
    for (_, role), bars in parts.items():
        _add(ax, _bars(bars, 0.36, light(role)))
    for when, row, target in arrows:
        line = {"arrowstyle": "-|>", "color": light("ink"), "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", xy=(when, target), xytext=(when, row), arrowprops=line)
    ax.set(xlim=span, ylim=(len(rows) - 0.5, -0.7), xlabel=axis)
    ax.set_yticks(range(len(rows)), row_labels(rows, width_in))
    handles = [Patch(facecolor=light(role), label=words) for words, role in parts]
    overlap = "compute beside communication or copies"
    shade_handles = [Patch(facecolor=light("fail"), alpha=0.25, label=overlap)] if shades else []
    add_legend(figure, {}, [*handles, *shade_handles])
    return figure


def _add(ax: Axes, patches: Sequence[PathPatch]) -> None:
    for patch in patches:
        ax.add_artist(patch)  # add_patch would search every corner for limits, which are set below


def _bars(bars: np.ndarray, half: float, colour: str) -> list[PathPatch]:
    """Rectangles from bars (n, 4) of row, start, length, strength, `half` a row up and down.

    Those of one strength are one path, which takes a file and its reader a fraction of one path per bar.
    """
    row, start, length, strength = bars.T
    left, right, top, low = start, start + length, row - half, row + half
    corners = np.stack([left, top, left, low, right, low, right, top, left, top], axis=1).reshape(-1, 5, 2)
    patches = []
    for alpha in np.unique(strength).tolist():
        chosen = corners[strength == alpha]
        codes = np.tile(_RECTANGLE, len(chosen))
        path = Path(chosen.reshape(-1, 2), codes)
        face = (*to_rgb(colour), alpha)
        patches.append(PathPatch(path, facecolor=face, edgecolor="none", linewidth=0, snap=True))
    return patches
