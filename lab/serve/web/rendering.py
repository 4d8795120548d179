"""The templates of the pages, and what they are given to write with."""

from __future__ import annotations

from pathlib import Path

import jinja2

from lab.core.words import plural, size_text
from lab.serve.live import GOING

HERE = Path(__file__).parent


def _size(size_bytes: int) -> str:
    return plural(size_bytes, "byte") if size_bytes < 1000 else size_text(size_bytes)


def made_templates() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"size": _size, "plural": plural, "when": lambda text: text[:16].replace("T", " ")}
    found.tests["match_start"] = str.startswith
    found.globals["going"] = GOING
    found.globals["words"] = {"ok": "ok", "warn": "reservations", "fail": "no result"}
    return found
