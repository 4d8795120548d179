"""A figure as PNG, and as inline SVG in the colours of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from lab.core.files import write_atomic
from lab.report.figures.style import PHONE_IN, STYLE, WIDTH_IN
from lab.report.palette import PALETTE, light


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
        figure.set_layout_engine("none")  # laid out above; a second time takes as long again
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    write_atomic(folder / f"{name}.png", png.getvalue())
    return inline_svg(svg.getvalue(), name)


def save_both(draw: Callable[..., Figure], folder: Path, name: str) -> str:
    """As `save`, with a second form of the figure that the page shows where it is as narrow as a phone.

    draw(width_in=...) draws it so wide.
    """
    wide = save(draw(width_in=WIDTH_IN), folder, name)
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        svg = io.StringIO()
        draw(width_in=PHONE_IN).savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    narrow = inline_svg(svg.getvalue(), f"{name}-narrow")
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def inline_svg(svg: str, name: str) -> str:
    """Remove what only a separate file needs, make ids unique on the page, and use the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    svg = re.sub(r'<g id="tip:([^"]*)">', r'<g data-tip="\1">', svg)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    roles = {ink.light: role for role, ink in PALETTE.items()}

    def colour(hit: re.Match[str]) -> str:
        return f"var(--{roles[hit[0]]})" if hit[0] in roles else hit[0]

    svg = re.sub(r"(?<=: )#[0-9a-f]{6}", colour, svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)
