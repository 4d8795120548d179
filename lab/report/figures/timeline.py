"""Bars on rows over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from lab.report.figures.style import WIDTH_IN, add_legend, figure_with_axes, row_labels, styled
from lab.report.palette import light


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


_RECTANGLE = np.array([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], dtype=np.uint8)
