"""A roofline: rate over arithmetic intensity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from lab.report.figures.style import (
    MARKERS,
    SERIES,
    narrow_figure,
    set_hover,
    styled,
)
from lab.report.palette import light


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
            set_hover(dot, hover)
    for side in (ax.xaxis, ax.yaxis):  # plain numbers: powers would be drawn as TeX
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        side.set_minor_formatter(NullFormatter())
    ax.grid(which="major")
    figure.legend(loc="outside upper right", ncols=6)
    return figure
