"""A figure as PNG, and as inline SVG in the colours of the page."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from lab.core.files import write_atomic
from lab.report.figures.style import PHONE_IN, STYLE, WIDTH_IN
from lab.report.palette import PALETTE, light

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
    letters = re.sub(r"[^A-Za-z]", "", path)
    if letters and letters == "MLLLz" * (len(letters) // 5):
        corners = np.array(re.findall(r"[-.\d]+", path), dtype=float).reshape(-1, 4, 2)
        if _are_upright(corners):
            return _rectangles(np.rint(corners * 1000).astype(int))
    path = re.sub(r"-?\d+\.\d{4,}", lambda hit: _number(round(float(hit[0]) * 1000)), path)
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", path).strip()


def _are_upright(corners: np.ndarray) -> bool:
    """Whether corners (n, 4, 2) are rectangles that begin with a vertical side."""
    x, y = corners[:, :, 0].T, corners[:, :, 1].T
    same = (x[0] == x[1]) & (x[2] == x[3]) & (y[1] == y[2]) & (y[3] == y[0])
    return bool(same.all())


def _rectangles(corners: np.ndarray) -> str:
    """Of corners (n, 4, 2) in thousandths: closed, each begins at an offset from the begin of the last."""
    begins = corners[:, 0]
    moves = np.diff(begins, axis=0, prepend=0)
    across, down = (corners[:, 2] - begins).T
    table = zip(*moves.T.tolist(), across.tolist(), down.tolist(), strict=True)
    return "".join(
        f"m{_number(x)} {_number(y)}v{_number(height)}h{_number(width)}v{_number(-height)}z"
        for x, y, width, height in table
    )


@functools.lru_cache(maxsize=4096)
def _number(thousandths: int) -> str:
    """-5 -> -.005"""
    whole, part = divmod(abs(thousandths), 1000)
    digits = f"{whole or ''}.{part:03}".rstrip("0").rstrip(".")
    return f"{'-' if thousandths < 0 else ''}{digits}" if thousandths else "0"
