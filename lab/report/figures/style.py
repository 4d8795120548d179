"""The style that all figures share, without pyplot: no global state, any process may draw.

A figure is written as PNG, and as inline SVG in the colours of the page.
"""

from __future__ import annotations

import functools
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lab.core.files import write_atomic
from lab.report import PALETTE, light

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


_ROLES = {ink.light: f"var(--{role})" for role, ink in PALETTE.items()}


def save_png(figure: Figure, path: Path, *, dpi: int = 300) -> Path:
    """Write `figure` as a PNG, atomically; the same figure gives the same bytes."""
    png = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(png, format="png", dpi=dpi, facecolor=light("paper"), metadata={"Software": None})
    write_atomic(path, png.getvalue())
    return path


def save(drawing: Figure | Callable[..., Figure], folder: Path, name: str) -> str:
    """Write `folder/name.png` (150 dpi, atomic) and return the same figure as inline SVG in CSS variables.

    A function draw(width_in=...) is drawn a second time, for pages as narrow as a phone. The same figure
    gives the same bytes. Raises StorageError where the folder cannot be written.
    """
    wide = drawing if isinstance(drawing, Figure) else drawing(width_in=WIDTH_IN)
    save_png(wide, folder / f"{name}.png", dpi=150)
    wide.set_layout_engine("none")  # laid out above; a second time takes as long again
    svg = _svg(wide, name)
    if isinstance(drawing, Figure):
        return svg
    narrow = _svg(drawing(width_in=PHONE_IN), f"{name}-narrow")
    return f'<div class="wide">{svg}</div><div class="narrow">{narrow}</div>'


def _svg(figure: Figure, name: str) -> str:
    svg = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    return inline_svg(svg.getvalue(), name)


def inline_svg(svg: str, name: str) -> str:
    """Remove what only a separate file needs, make ids unique on the page, and use the page's colours.

    Paths keep three digits behind the point: a thousandth of a point, which no screen shows. Tags are
    changed, never the text between them.
    """
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r">\s*\n\s*<", "><", svg)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]*)', svg))

    def tag(hit: re.Match[str]) -> str:
        if re.match("<g id=[\"']tip:", hit[0]):  # matplotlib quotes by " or '
            return hit[0].replace("id=", "data-tip=", 1).replace("tip:", "", 1)
        text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", hit[0])
        text = re.sub(r' id="([^"]*)"', lambda id: id[0] if id[1] in used else "", text)
        text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", text)
        text = re.sub(r' d="([^"]*)"', lambda d: f' d="{short_path(d[1])}"', text)
        return re.sub(r' style="[^"]*"', lambda style: _page_style(style[0]), text)

    svg = re.sub(r"<[^<>]*>", tag, svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def _page_style(style: str) -> str:
    """In the page's colours and font."""
    style = re.sub(r"font-family: [^;\"]*; ", "", style)
    return re.sub(r"(?<=: )#[0-9a-f]{6}", lambda hit: _ROLES.get(hit[0], hit[0]), style)


def short_path(path: str) -> str:
    """The same path in thousandths of a point; rectangles each from the one before, a third as long."""
    words = path.split()
    if len(words) % 13 == 0 and words[::13] == ["M"] * (len(words) // 13) and _are_upright(words):
        return _rectangles(words)
    path = re.sub(r"-?\d+\.\d{4,}", lambda hit: _number(round(float(hit[0]) * 1000)), path)
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", path).strip()


def _are_upright(words: list[str]) -> bool:
    """Whether every 13 words, `M x y L x y L x y L x y z`, are a rectangle that begins with its left side."""
    letters = {"".join(four) for four in zip(*(words[at::13] for at in (3, 6, 9, 12)), strict=True)}
    sides = ((1, 4), (7, 10), (5, 8), (11, 2))
    return letters <= {"LLLz"} and all(words[one::13] == words[other::13] for one, other in sides)


def _rectangles(words: list[str]) -> str:
    """Each begins at an offset from the begin of the last one."""
    corners = [np.array(words[at::13], dtype=float) for at in (1, 2, 7, 8)]
    left, top, right, low = np.rint(np.array(corners) * 1000).astype(int)
    moves = np.diff(left, prepend=0), np.diff(top, prepend=0)
    table = zip(*(column.tolist() for column in (*moves, right - left, low - top)), strict=True)
    return "".join(
        f"m{_number(x)} {_number(y)}v{_number(height)}h{_number(width)}v{_number(-height)}z"
        for x, y, width, height in table
    )


@functools.lru_cache(maxsize=1 << 16)
def _number(thousandths: int) -> str:
    """-5 -> -.005"""
    if thousandths % 1000 == 0:
        return str(thousandths // 1000)
    text = f"{thousandths / 1000:.3f}".rstrip("0")
    return text.replace("0.", ".", 1) if -1000 < thousandths < 1000 else text
