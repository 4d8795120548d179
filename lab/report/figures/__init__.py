"""Figures in one style: drawn once by matplotlib, saved as PNG and as SVG in the colours of the page."""

from lab.report.figures.bars import stacked_bars, stacked_panels, timeline, waterfall
from lab.report.figures.points import Cell, cell_grid, distributions, lines, ranges, roofline
from lab.report.figures.style import SERIES, save, save_png

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
