"""What a page is made of: its key numbers, blocks and sections, as data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import pandas as pd
from markupsafe import Markup

from lab.report.tables import cell_texts, column_of
from lab.report.terminal import Heading, heading

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Card:
    """One key number: `value` as text with its `unit`; `source` is its CSV, relative to the page."""

    label: str
    value: str
    source: str
    unit: str = ""
    note: str = ""


@dataclass(frozen=True)
class Prose:
    text: str
    kind: ClassVar[str] = "prose"


@dataclass(frozen=True)
class Points:
    """Sentences as a list."""

    sentences: Sequence[str]
    kind: ClassVar[str] = "points"


@dataclass(frozen=True)
class Figure:
    """An inline SVG from `figures.save`, its PNG and the CSV behind it, both relative to the page."""

    svg: str
    caption: str
    png: str
    source: str
    kind: ClassVar[str] = "figure"

    @property
    def markup(self) -> Markup:
        return Markup(self.svg)  # matplotlib's writer has escaped every label


@dataclass(frozen=True)
class Column:
    heading: Heading
    numeric: bool
    cells: list[str]
    sort_keys: list[str]
    pills: list[str]


@dataclass(frozen=True)
class Table:
    """A DataFrame on the page; `source` is its CSV, relative to the page.

    Beyond `open_rows` it starts folded, beyond `limit` it is cut. `headings` gives a column other words than
    its name; `pills` maps a cell's text to a colour role.
    """

    frame: pd.DataFrame
    caption: str
    source: str
    headings: dict[str, Heading] = field(default_factory=dict)
    pills: dict[str, str] = field(default_factory=dict)
    open_rows: int = 24
    limit: int = 400
    kind: ClassVar[str] = "table"

    @property
    def folded(self) -> bool:
        return len(self.frame) > self.open_rows

    @cached_property
    def columns(self) -> list[Column]:
        shown = self.frame.head(self.limit)
        return [self._column(shown.iloc[:, index]) for index in range(shown.shape[1])]

    @property
    def rows(self) -> int:
        return min(len(self.frame), self.limit)

    def _column(self, values: pd.Series) -> Column:
        column = column_of(values)
        cells, numeric = cell_texts(column), column.is_numeric
        keys = [f"{value:.6g}" for value in values.astype(float)] if numeric else [""] * len(cells)
        pills = [self.pills.get(cell, "") for cell in cells]
        return Column(self.headings.get(column.name, heading(column.name)), numeric, cells, keys, pills)


def title_of(room: str, name: str) -> str:
    """A page's title: a run's folder is named like its room unless its user chose another name."""
    return name if name.startswith(room.lower()) else f"{room} {name}"


@dataclass(frozen=True)
class Series:
    """Points of one colour `role`: (x, y, hover text)."""

    name: str
    role: str
    points: Sequence[tuple[float, float, str]]


@dataclass(frozen=True)
class Chart:
    """Points to zoom and hover over, series that can be hidden; `source` is its CSV, relative to the page."""

    name: str
    x: str
    y: str
    series: Sequence[Series]
    caption: str
    source: str
    diagonal: bool = False
    png: ClassVar[str] = ""  # the browser alone draws it
    kind: ClassVar[str] = "chart"

    @property
    def json(self) -> str:
        series = [asdict(points) for points in self.series]
        spec = {"x": self.x, "y": self.y, "series": series, "diagonal": self.diagonal}
        return json.dumps(spec, allow_nan=False)


@dataclass(frozen=True)
class Timeline:
    """Bars on rows over time, on a canvas to zoom, search and click; `source` is its CSV, `png` a picture,
    both relative to the page.

    `bars` are compressed typed arrays in base64, made by `lab.recordings.gantt.bars`.
    """

    name: str
    bars: dict[str, Any]
    caption: str
    source: str
    png: str = ""
    kind: ClassVar[str] = "timeline"

    @property
    def json(self) -> str:
        return json.dumps(self.bars, allow_nan=False)


@dataclass(frozen=True)
class Files:
    """Files to open: (path relative to the page, what it is)."""

    caption: str
    entries: Sequence[tuple[str, str]]
    kind: ClassVar[str] = "files"


Block = Prose | Points | Figure | Table | Chart | Timeline | Files


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """What a page says. Every text may be hostile: the template escapes it.

    `provenance` is group -> {name: value}; `kind` distinguishes measured, replayed and synthetic numbers;
    `badge` replaces the default words for the status.
    """

    title: str
    question: str
    verdict: Sequence[str]
    status: Status
    cards: Sequence[Card] = ()
    sections: Sequence[Section] = ()
    provenance: dict[str, dict[str, str]] = field(default_factory=dict)
    footnotes: Sequence[str] = ()
    room: str = ""
    kind: str = "measured"
    badge: str = ""

    @property
    def pictures(self) -> list[str]:
        """The PNG of every figure, relative to the page."""
        blocks = [block for section in self.sections for block in section.blocks]
        return [block.png for block in blocks if isinstance(block, Figure)]
