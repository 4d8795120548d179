"""The page of a result: one self-contained HTML file with the verdict on top and its evidence below.

The page loads nothing: style and script are inside, and its content policy lets no other script run.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from lab.core.files import write_atomic
from lab.core.findings import FINDINGS, save
from lab.report import palette
from lab.report.evidence import findings_of
from lab.report.parts import Page

SCRIPTS = {"chart": "charts.js", "timeline": "timeline.js"}  # what a kind of block needs beyond page.js
REPORT = "report.html"
_HERE = Path(__file__).parent


def render(page: Page) -> str:
    """The page as one HTML text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["href"] = _href
    kinds = {block.kind for section in page.sections for block in section.blocks}
    scripts = ["page.js", *(name for kind, name in SCRIPTS.items() if kind in kinds)]
    script = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in scripts)
    style = palette.css_variables() + "\n" + (_HERE / "page.css").read_text(encoding="utf-8")
    return environment.get_template("template.html.jinja").render(
        page=page, style=Markup(style), script=Markup(script), script_hash=_content_hash(script)
    )


def write_page(page: Page, path: Path) -> Path:
    """Render and write atomically; report.html gets findings.json beside it, the same facts for machines.

    Raises StorageError where a file cannot be written.
    """
    write_atomic(path, render(page).encode())
    if path.name == REPORT:
        save(findings_of(page, path), path.with_name(FINDINGS))
    return path


def _href(path: str) -> str:
    # Quoting the colon keeps `javascript:` and every other scheme a plain relative path.
    return quote(path, safe="/")


def _content_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
