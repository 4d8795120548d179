"""Figures in one style: drawn once by matplotlib, saved as PNG and retold as SVG in the page's own colours.

Figures are made without pyplot: no global state, any process may draw, and a dropped figure is freed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter

from lab.core.files import write_atomic
from lab.report.palette import PALETTE, light

WIDTH_IN = 10.6
# Told apart by shape too, for eyes and printers that see no colour.
SERIES = ("computation", "communication", "ok", "memcpy", "fail", "unknown")
MARKERS = ("o", "s", "^", "D", "v", "P")
STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # labels are hostile: a lone $ must not be read as TeX
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlecolor": light("ink"),
    "axes.labelcolor": light("muted"),
    "axes.edgecolor": light("rule"),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "grid.color": light("rule"),
    "grid.linewidth": 0.6,
    "text.color": light("ink"),
    "xtick.color": light("rule"),
    "xtick.labelcolor": light("muted"),
    "ytick.color": light("rule"),
    "ytick.labelcolor": light("ink"),
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.borderpad": 0,
}


styled = matplotlib.rc_context(STYLE)  # decorates what draws; settings are back as they were afterwards


@dataclass(frozen=True)
class Cell:
    """One cell of a `cell_grid`: text, colour role, strength of the colour (0 to 1), hover text."""

    text: str
    role: str
    strength: float
    hover: str = ""


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
    figure, axes = _empty(height_in)
    ax = axes[0]
    _stack(ax, labels, parts)
    for at, (low, middle, high) in enumerate(marks):
        ax.plot([low, high], [at, at], color=light("ink"), linewidth=1)
        label = mark_label if at == 0 else None
        ax.plot([middle], [at], marker="D", markersize=4.5, color=light("ink"), linestyle="none", label=label)
    ax.set_xlabel(axis)
    _legend(figure, parts, ax.get_legend_handles_labels()[0], words)
    return figure


@styled
def stacked_panels(
    titles: Sequence[str],
    labels: Sequence[Sequence[str]],
    parts: Sequence[Mapping[str, np.ndarray]],
    *,
    axis: str,
) -> Figure:
    """Small multiples of stacked bars on one scale; each panel's `parts` is as in `stacked_bars`."""
    across = min(4, len(titles))
    down = -(-len(titles) // across)
    tallest = max(len(panel) for panel in labels)
    figure, axes = _empty(0.6 + down * (0.45 + 0.17 * tallest), down, across)
    for ax, title, panel_labels, panel in zip(axes, titles, labels, parts, strict=False):
        _stack(ax, panel_labels, panel, title=title)
        ax.set_title(title)
    for ax in axes[len(titles) :]:
        ax.set_visible(False)
    for ax in axes[max(0, len(titles) - across) : len(titles)]:
        ax.set_xlabel(axis)
    _legend(figure, parts[0], [])
    return figure


@styled
def cell_grid(
    rows: Sequence[str],
    columns: Sequence[str],
    cell: Callable[[int, int], Cell | None],
    *,
    legend: Mapping[str, str],
) -> Figure:
    """A grid of coloured cells; `cell(row, column)` is None for no data; `legend` is words -> role."""
    figure, axes = _empty(0.75 + 0.3 * len(rows))
    ax = axes[0]
    for down in range(len(rows)):
        for across in range(len(columns)):
            content = cell(down, across)
            if content is not None:
                _draw_cell(ax, down, across, content)
    # Few columns keep to the left: a cell needs no more room than its text.
    ax.set(xlim=(-0.5, max(len(columns), 6) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    ax.set_yticks(range(len(rows)), rows)
    upright = len(columns) > 8
    ax.set_xticks(range(len(columns)), columns, rotation=90 if upright else 0)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines["bottom"].set_visible(False)
    if legend:
        _legend(
            figure,
            {},
            [Patch(facecolor=light(role), alpha=0.6, label=words) for words, role in legend.items()],
        )
    return figure


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
    figure = _bare(3.9, across=len(titles))
    panels = figure.subplots(1, len(titles), squeeze=False, sharey=True)[0]
    for ax, title, found in zip(panels, titles, groups, strict=True):
        ax.set_title(title)
        ax.grid(axis="y")
        for at, values in enumerate(found.values()):
            _draw_distribution(ax, at, np.asarray(values, dtype=float), violins)
        labels = [
            f"{label}\n{f'n {len(values)}' if len(values) else 'no data'}" for label, values in found.items()
        ]
        ax.set_xticks(range(len(found)), labels, rotation=90 if len(found) > 12 else 0)
        ax.set_xlim(-0.6, len(found) - 0.4)
    panels[0].set_ylabel(axis)
    return figure


@styled
def lines(
    positions: Sequence[str], series: Mapping[str, np.ndarray], *, across: str, axis: str, title: str = ""
) -> Figure:
    """A line per series over shared positions; `series` maps its name to values [position], NaN a gap."""
    figure = _bare(3.9)
    ax = figure.subplots()
    for at, (name, values) in enumerate(series.items()):
        role = SERIES[at % len(SERIES)]
        ax.plot(
            range(len(positions)), values, marker=MARKERS[at % len(MARKERS)], color=light(role), label=name
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
) -> Figure:
    """A dot with its interval for each label, first on top; `spans` are (low, middle, high), NaN where unknown."""
    figure, axes = _empty(0.75 + 0.24 * len(labels))
    ax = axes[0]
    ax.axvline(reference, color=light("muted"), linewidth=1)
    for at, ((low, middle, high), role) in enumerate(zip(spans, roles, strict=True)):
        ax.plot([low, high], [at, at], color=light(role), linewidth=1.6)
        ax.plot([middle], [at], marker="o", markersize=4.5, color=light(role))
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlabel(axis)
    ax.grid(axis="x")
    return figure


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
    figure = _bare(4.4)
    ax = figure.subplots()
    ax.set(xscale="log", yscale="log", xlabel=across, ylabel=axis)
    every = [x for points in series.values() for x, _, _ in points]
    for name, (highest, slope) in roofs.items():
        knee = highest / slope
        low, high = min([*every, knee]) / 2, max([*every, knee]) * 3
        ax.plot([low, knee, high], [low * slope, highest, highest], color=light("muted"), linewidth=1)
        ax.annotate(name, (high, highest), ha="right", va="bottom", color=light("muted"))
    for at, (name, points) in enumerate(series.items()):
        role, marker = SERIES[at % len(SERIES)], MARKERS[at % len(MARKERS)]
        for number, (x, y, hover) in enumerate(points):
            label = name if number == 0 else None
            (dot,) = ax.plot([x], [y], marker=marker, color=light(role), linestyle="none", label=label)
            _hover(dot, hover)
    for side in (ax.xaxis, ax.yaxis):  # plain numbers: powers would be drawn as TeX
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        side.set_minor_formatter(NullFormatter())
    ax.grid(which="major")
    figure.legend(loc="outside upper right", ncols=6)
    return figure


@styled
def timeline(
    rows: Sequence[str],
    parts: Mapping[tuple[str, str], np.ndarray],
    *,
    span: tuple[float, float],
    bands: Sequence[tuple[str, float, float]],
    shades: Sequence[tuple[int, float, float]],
    axis: str,
) -> Figure:
    """Bars on one row a label, first on top: `parts` maps (words, colour role) to bars (n, 4) of row, start, length and
    strength of the colour (0 to 1).

    bands are (name, start, end), tinted in turn and named above where there is room; shades are (row, start, end).
    One collection of polygons per part: a thousand times quicker than a drawing call per bar.
    """
    figure, axes = _empty(1.2 + 0.3 * len(rows))
    ax = axes[0]
    for at, (name, start, end) in enumerate(bands):
        ax.axvspan(start, end, facecolor=light("rule"), alpha=0.5 if at % 2 == 0 else 0.2, linewidth=0)
        if (min(end, span[1]) - max(start, span[0])) > len(name) * 0.009 * (span[1] - span[0]):
            ax.text(
                (max(start, span[0]) + min(end, span[1])) / 2,
                -0.75,
                name,
                ha="center",
                va="bottom",
                color=light("muted"),
            )
    if shades:
        boxes = np.array([(row, start, end - start, 0.14) for row, start, end in shades])
        ax.add_collection(_bars(boxes, 0.5, light("fail")))
    for (_, role), bars in parts.items():
        ax.add_collection(_bars(bars, 0.36, light(role)))
    ax.set(xlim=span, ylim=(len(rows) - 0.5, -0.7), xlabel=axis)
    ax.set_yticks(range(len(rows)), rows)
    handles = [Patch(facecolor=light(role), label=words) for words, role in parts]
    more = (
        [Patch(facecolor=light("fail"), alpha=0.25, label="compute beside communication or copies")]
        if shades
        else []
    )
    figure.legend(
        handles=[*handles, *more], loc="outside upper left", ncols=6, handlelength=1.2, columnspacing=1.6
    )
    return figure


def _bars(bars: np.ndarray, half: float, colour: str) -> PolyCollection:
    """Rectangles of `half` a row's height each way around rows (n, 4): row, start, length, strength of the colour."""
    row, start, length, strength = bars.T
    left, right, top, low = start, start + length, row - half, row + half
    corners: Any = np.stack([left, top, left, low, right, low, right, top], axis=1).reshape(-1, 4, 2)
    faces = np.concatenate([np.tile(to_rgb(colour), (len(bars), 1)), strength[:, None]], axis=1)
    return PolyCollection(corners, facecolors=faces, linewidths=0)


def save_png(figure: Figure, path: Path, *, dpi: int = 300) -> Path:
    """Write `figure` as a PNG, atomically; the same figure gives the same bytes."""
    png = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(png, format="png", dpi=dpi, facecolor=light("paper"), metadata={"Software": None})
    write_atomic(path, png.getvalue())
    return path


def save(figure: Figure, folder: Path, name: str) -> str:
    """Write `folder/name.png` (150 dpi, atomic) and return the same figure as inline SVG in CSS variables.

    The same figure gives the same bytes. Raises StorageError where the folder cannot be written.
    """
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        png, svg = io.BytesIO(), io.StringIO()
        figure.savefig(png, format="png", dpi=150, facecolor=light("paper"), metadata={"Software": None})
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    write_atomic(folder / f"{name}.png", png.getvalue())
    return _inline(svg.getvalue(), name)


def _empty(height_in: float, down: int = 1, across: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(down, across, squeeze=False, sharex=True).flat)


def _bare(height_in: float, across: int = 1) -> Figure:
    figure = Figure(figsize=(WIDTH_IN if across > 1 else 0.75 * WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_distribution(ax: Axes, at: int, values: np.ndarray, violins: bool) -> None:
    values = values[np.isfinite(values)]
    if violins and len(np.unique(values)) > 1:
        drawn = ax.violinplot([values], positions=[at], widths=0.8, showextrema=False)
        for body in drawn["bodies"]:  # type: ignore[attr-defined]
            body.set(facecolor=light("computation"), alpha=0.35)
    elif len(values):
        ax.boxplot(
            [values], positions=[at], widths=0.55, showfliers=False, medianprops={"color": light("ink")}
        )
    # The golden ratio spreads neighbours far apart, so that no trend is drawn that is not there.
    sideways = 0.3 * (np.arange(len(values)) * 0.618034 % 1 - 0.5)
    ax.plot(at + sideways, values, ".", markersize=4, color=light("computation"), alpha=0.7)
    if violins and len(values):
        ax.plot([at - 0.15, at + 0.15], [np.median(values)] * 2, color=light("ink"), linewidth=1.4)


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
            _hover(bar, f"{title} {label}: {role} {length:.4g}".strip())
        left = left + lengths
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.grid(axis="x")


def _draw_cell(ax: Axes, down: int, across: int, content: Cell) -> None:
    box = Rectangle(
        (across - 0.48, down - 0.44),
        0.96,
        0.88,
        facecolor=light(content.role),
        alpha=round(0.08 + 0.6 * content.strength, 3),
        linewidth=0,
    )
    _hover(box, content.hover)
    ax.add_patch(box)
    ax.text(across, down, content.text, ha="center", va="center")


def _legend(
    figure: Figure,
    parts: Mapping[str, np.ndarray],
    more: Sequence[Any],
    words: Mapping[str, str] | None = None,
) -> None:
    handles = [Patch(facecolor=light(role), label=(words or {}).get(role, role)) for role in parts] + list(
        more
    )
    figure.legend(handles=handles, loc="outside upper left", ncols=6, handlelength=1.2, columnspacing=1.6)


def _hover(artist: Any, text: str) -> None:
    if text:
        artist.set_gid(f"tip:{text}")


def _inline(svg: str, name: str) -> str:
    """Cut what only a file of its own needs, make ids unique on the page, leave the colours to the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    svg = re.sub(r'<g id="tip:([^"]*)">', r'<g data-tip="\1">', svg)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    roles = {ink.light: role for role, ink in PALETTE.items()}
    svg = re.sub(
        r"(?<=: )#[0-9a-f]{6}", lambda hit: f"var(--{roles[hit[0]]})" if hit[0] in roles else hit[0], svg
    )
    return svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)
