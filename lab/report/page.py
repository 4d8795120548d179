"""The page of a result: one self-contained HTML file with the verdict on top and its evidence below.

The page loads nothing: style and script are inside, and its content policy lets no other script run.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import math
import re
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

import lab
from lab.core.files import sha256_of, write_atomic
from lab.core.findings import FINDINGS, Evidence, Finding, Findings, save
from lab.report import css_variables
from lab.report.parts import Card, Page
from lab.report.terminal import heading

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
    style = css_variables() + "\n" + (_HERE / "page.css").read_text(encoding="utf-8")
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


# findings.json: the verdict and the cards, each with the file and, where known, the row behind it.

MOST_FILES = 20  # that one sentence cites
MOST_SEARCHED_BYTES = 4 << 20  # of a CSV in which a card's row is looked for
_SEPARATOR = re.compile(r"[,\u202f\u00a0 ]")
_NUMBER = re.compile(
    r"[+-]?(?:\d+|\d{1,3}(?:[,\u202f\u00a0 ]\d{3})+)(?:\.(?P<decimals>\d+))?(?:e[+-]?\d+)?\Z", re.ASCII
)
_SEVERITY: dict[str, Any] = {"ok": "info", "warn": "warning", "fail": "critical"}


def findings_of(page: Page, path: Path) -> Findings:
    """What the page at `path` says. A sentence cites the page and its tables; a card cites its CSV."""
    hashes: dict[str, str] = {}
    about = Evidence(file=path.name, sha256=sha256_of(path))
    tables = [evidence for name in _sources(page) if (evidence := _file(path.parent, name, hashes))]
    verdict = [
        Finding(
            id=f"verdict-{number}",
            kind="verdict",
            severity=_SEVERITY[page.status] if number == 1 else "info",
            title=page.title,
            text=str(sentence),
            evidence=(about, *tables[:MOST_FILES]),
        )
        for number, sentence in enumerate(page.verdict, start=1)
    ]
    figures = [
        _figure(index, card, path.parent, about, hashes) for index, card in enumerate(page.cards, start=1)
    ]
    return Findings(
        producer=f"lab {lab.__version__}",
        written_utc=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        run=page.provenance.get("Run", {}).get("id", ""),
        room=page.room,
        kind=page.kind,
        status=page.status,
        question=page.question,
        findings=(*verdict, *figures),
    )


def _figure(number: int, card: Card, folder: Path, page: Evidence, hashes: dict[str, str]) -> Finding:
    source = _file(folder, card.source, hashes)
    return Finding(
        id=f"figure-{number}",
        kind="figure",
        severity="info",
        title=card.label,
        text=f"{card.value} {card.unit}".strip(),
        value=number_in(card.value),
        unit=card.unit,
        note=card.note,
        evidence=(_with_row(source, folder, card) if source else page,),
    )


def number_in(text: str) -> float | None:
    """The number that a card shows, without separators of thousands; None for words, lists and infinities."""
    return parsed[0] if (parsed := _parsed(text)) else None


def _parsed(text: str) -> tuple[float, int] | None:
    """The number and its decimals."""
    match = _NUMBER.match(text.strip().replace("−", "-"))
    if match is None:
        return None
    value = float(_SEPARATOR.sub("", match[0]))
    return (value, len(match["decimals"] or "")) if math.isfinite(value) else None


def _sources(page: Page) -> Iterable[str]:
    named = [card.source for card in page.cards]
    named += [
        block.source for section in page.sections for block in section.blocks if hasattr(block, "source")
    ]
    return dict.fromkeys(name for name in named if name)


def _file(folder: Path, name: str, hashes: dict[str, str]) -> Evidence | None:
    path = folder / name
    if not path.is_file():
        return None
    if name not in hashes:
        hashes[name] = sha256_of(path)
    return Evidence(file=name, sha256=hashes[name])


def _with_row(source: Evidence, folder: Path, card: Card) -> Evidence:
    """The same with its row, where exactly one cell of the CSV reads as the card does."""
    cells = _cells(folder / source.file, card)
    if len(cells) != 1:
        return source
    row, column, value = cells[0]
    return Evidence(file=source.file, sha256=source.sha256, row=row, columns=(column,), values=(value,))


def _cells(path: Path, card: Card) -> list[tuple[int, str, str]]:
    """(row, column, cell) of all cells that round to the card's value, in columns of its unit if any."""
    number = _parsed(card.value)
    if number is None or path.suffix != ".csv" or path.stat().st_size > MOST_SEARCHED_BYTES:
        return []
    wanted, decimals = number
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = csv.reader(file)
        names = next(rows, [])
        units = [column for column, name in enumerate(names) if card.unit and heading(name).unit == card.unit]
        looked = units or range(len(names))
        return [
            (index, names[column], row[column])
            for index, row in enumerate(rows)
            for column in looked
            if column < len(row) and _reads_as(row[column], wanted, decimals)
        ]


def _reads_as(cell: str, wanted: float, decimals: int) -> bool:
    try:
        value = float(cell)
    except ValueError:
        return False
    return math.isfinite(value) and round(value, decimals) == wanted
