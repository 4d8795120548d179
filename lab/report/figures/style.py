"""The style that all figures share, without pyplot: no global state, any process may draw."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lab.report.palette import light

WIDTH_IN = 10.6
PHONE_IN = 4.75  # what a figure is on a screen of 400 px, its text as large as on a wide one
LEGEND_ROW_IN = 0.2
LEGEND_IN = 1.75  # of one entry of a legend
LABEL_CHARS = 24  # of a row's label in one line, on a phone
# Series differ in marker too, for readers and printers without colour.
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
# Decorates a function that draws; matplotlib's own settings are restored afterwards.
styled = matplotlib.rc_context(STYLE)


def figure_with_axes(
    height_in: float, down: int = 1, across: int = 1, *, width_in: float = WIDTH_IN
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(down, across, squeeze=False, sharex=True).flat)


def narrow_figure(height_in: float, across: int = 1) -> Figure:
    figure = Figure(figsize=(WIDTH_IN if across > 1 else 0.75 * WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def add_legend(
    figure: Figure,
    parts: Mapping[str, np.ndarray],
    extra_handles: Sequence[Any],
    words: Mapping[str, str] | None = None,
) -> None:
    handles = [Patch(facecolor=light(role), label=(words or {}).get(role, role)) for role in parts] + list(
        extra_handles
    )
    across = max(1, int(figure.get_figwidth() / LEGEND_IN))
    rows_more = -(-len(handles) // across) - -(-len(handles) // int(WIDTH_IN / LEGEND_IN))
    figure.set_figheight(figure.get_figheight() + rows_more * LEGEND_ROW_IN)  # else they take the axes' room
    figure.legend(
        handles=handles, loc="outside upper left", ncols=across, handlelength=1.2, columnspacing=1.6
    )


def row_labels(labels: Sequence[str], width_in: float) -> list[str]:
    """In several lines where the figure is narrow, so that the rows keep their room."""
    if width_in > PHONE_IN:
        return list(labels)
    return ["\n".join(textwrap.wrap(label, LABEL_CHARS)) for label in labels]


def set_hover(artist: Any, text: str) -> None:
    if text:
        artist.set_gid(f"tip:{text}")
