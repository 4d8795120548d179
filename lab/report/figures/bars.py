"""Stacked bars, alone and as small multiples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.report.figures.style import WIDTH_IN, add_legend, figure_with_axes, set_hover, styled
from lab.report.palette import light


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
    for at, (low, middle, high) in enumerate(marks):
        ax.plot([low, high], [at, at], color=light("ink"), linewidth=1)
        label = mark_label if at == 0 else None
        ax.plot([middle], [at], marker="D", markersize=4.5, color=light("ink"), linestyle="none", label=label)
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
