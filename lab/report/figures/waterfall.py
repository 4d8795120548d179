"""A waterfall: how parts lead from one value to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.report.figures.style import PHONE_IN, WIDTH_IN, add_legend, figure_with_axes, set_hover, styled
from lab.report.palette import light

ENDS, MORE, LESS = "computation", "fail", "ok"


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
    before = np.concatenate([[begin[1]], steps[:-1]]) if len(parts) else steps
    last = steps[-1] if len(parts) else begin[1]
    labels = [begin[0], *(label for label, _ in parts), end]
    left = np.concatenate([[0.0], np.minimum(before, steps), [0.0]])
    length = np.concatenate([[begin[1]], np.abs(changes), [last]])
    roles = [ENDS, *(MORE if change > 0 else LESS for change in changes), ENDS]
    above = width_in <= PHONE_IN
    figure, (ax,) = figure_with_axes(0.9 + (0.48 if above else 0.3) * len(labels), width_in=width_in)
    thick = 0.42 if above else 0.66
    bars = ax.barh(range(len(labels)), length, left=left, height=thick, color=[light(role) for role in roles])
    _write_values(ax, bars, labels, [begin[1], *changes.tolist(), last], left + length)
    edges = np.concatenate([[begin[1]], steps])
    for at, value in enumerate(edges):  # the level that the next bar starts from
        span = [at + thick / 2, at + 1 - thick / 2]
        ax.plot([value, value], span, color=light("muted"), linewidth=0.7, zorder=0)
    ax.set_yticks([] if above else range(len(labels)), [] if above else labels)
    ax.set_ylim(len(labels) - 0.5, -0.85 if above else -0.5)
    low, high = _limits(edges, begin[1], room_for=0.3 if above else 0.12)
    ax.set_xlim(low, high)
    for at, label in enumerate(labels if above else ()):
        paper = {"facecolor": light("paper"), "edgecolor": "none", "pad": 0.5}
        ax.text(low, at - thick / 2 - 0.06, label, ha="left", va="bottom", bbox=paper)
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
    for at, (bar, label, value) in enumerate(zip(bars, labels, values, strict=True)):
        text = f"{value:,.1f}" if at in (0, len(labels) - 1) else f"{value:+,.1f}"
        set_hover(bar, f"{label}: {text}")
        place: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(text, (ends[at], at), color=light("muted"), **place)


def _limits(edges: np.ndarray, begin: float, room_for: float) -> tuple[float, float]:
    """From zero if the changes are a visible part of the values, else around the changes alone; `room_for` is
    the share of the width that a bar's figure takes beside it."""
    low, high = float(edges.min()), float(edges.max())
    room = max(high - low, abs(begin) * 1e-6, 1e-9)
    if room > 0.05 * abs(high):
        return min(0.0, low - 0.02 * room), high + room_for * max(high, room)
    return low - 0.3 * room, high + max(0.3, 2 * room_for) * room
