"""Which runs a list shows: filtered, sorted, grouped, a page at a time. Nothing here knows HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lab.serve.index import key_of
from lab.serve.live import RUNNING
from lab.serve.rows import Figure, RunRow

PAGE = 100
SPARK = (120, 24)  # px
SORTS = ("when", "run", "room", "model", "verdict", "state", "gpus", "image", "driver", "host", "integrity")
GROUPS = ("room", "model", "verdict", "state", "gpus", "image", "driver", "host", "day")
_TERM = re.compile(r'(-?)(?:([a-z_]+):)?(?:"([^"]*)"|(\S+))')


@dataclass(frozen=True)
class Wish:
    """What a person asked for. q: words that must occur; `room:nan` names a column, `-word` must not be."""

    q: str = ""
    sort: str = "when"
    desc: bool = True
    group: str = ""
    figure: str = ""
    page: int = 1


class Fact(NamedTuple):
    """What filters and sorts look at: a run's fields, and all its text in lower case."""

    fields: dict[str, str]
    text: str


Facts = dict[str, Fact]  # by the run's folder


@dataclass(frozen=True)
class Shown:
    """One row of the list."""

    row: RunRow
    key: str
    now: str  # of an open run: what it is doing
    figure: Figure | None


@dataclass(frozen=True)
class Spark:
    """A figure over time as an SVG polyline: `points`, and the values at its ends."""

    points: str
    first: str
    last: str
    least: str
    most: str
    count: int


@dataclass(frozen=True)
class Group:
    name: str
    rows: list[Shown]
    count: int
    spark: Spark | None = None


@dataclass(frozen=True)
class Listing:
    groups: list[Group]
    total: int
    matching: int
    pages: int
    page: int
    figures: list[str]
    figure: str
    live: list[Shown] = field(default_factory=list)


def listing(rows: Sequence[RunRow], wish: Wish, now: dict[str, str], known: Facts) -> Listing:
    """The page of the list that `wish` names.

    now: what each open run is doing, by its folder.
    """
    found = [row for row in rows if fits(row, wish.q, known, now)]
    labels = figure_labels(found)
    figure = wish.figure if wish.figure in labels else (labels[0] if labels else "")
    found = ordered(found, wish, figure, known)
    pages = max(1, -(-len(found) // PAGE))
    page = min(max(1, wish.page), pages)
    on_page = found[(page - 1) * PAGE : page * PAGE]
    return Listing(
        groups=grouped(on_page, found, wish, figure, now, known),
        total=len(rows),
        matching=len(found),
        pages=pages,
        page=page,
        figures=labels,
        figure=figure,
        live=[_shown(row, figure, now) for row in rows if now.get(row.folder) == RUNNING][:20],
    )


def fits(row: RunRow, q: str, known: Facts, now: dict[str, str]) -> bool:
    """Whether every term of `q` is in the row, and no term with a minus is."""
    for minus, column, quoted, word in _TERM.findall(q.lower()):
        term = quoted or word
        if column == "state":
            text = f"{row.state} {now.get(row.folder, '')}"
        elif column:
            text = known[row.folder].fields.get(column, "\0absent").lower()
        else:
            text = known[row.folder].text
        if (term in text) == bool(minus):
            return False
    return True


def fact_of(row: RunRow) -> Fact:
    fields = row.fields()
    # Names of configuration and versions count as text, those of the list's columns do not.
    parts = [
        f"{name.split(' ', 1)[1]} {value}" if name.startswith(("config ", "version ")) else value
        for name, value in fields.items()
    ]
    parts += [one.name for one in row.steps] + [one.reason for one in row.steps if one.reason]
    parts += [row.id, " ".join(row.command), *(one.text for one in row.findings)]
    return Fact(fields, "\n".join(parts).lower())


def figure_labels(rows: Iterable[RunRow]) -> list[str]:
    """Labels of numeric figures, those of most runs first."""
    counts: dict[str, int] = {}
    for row in rows:
        for label in {one.label for one in row.figures if one.value is not None}:
            counts[label] = counts.get(label, 0) + 1
    return sorted(counts, key=lambda label: (-counts[label], label))[:40]


def ordered(rows: list[RunRow], wish: Wish, figure: str, known: Facts) -> list[RunRow]:
    """Sorted; rows without the value are last either way."""
    if wish.sort == "figure":
        values = {row.folder: value_of(row, figure) for row in rows}
        first = [row for row in rows if values[row.folder] is not None]
        first.sort(key=lambda row: values[row.folder] or 0.0, reverse=wish.desc)
        return first + [row for row in rows if values[row.folder] is None]
    name = wish.sort if wish.sort in SORTS else "when"
    texts = {row.folder: known[row.folder].fields.get(name, "") for row in rows}
    first = [row for row in rows if texts[row.folder]]
    first.sort(key=lambda row: texts[row.folder], reverse=wish.desc)
    return first + [row for row in rows if not texts[row.folder]]


def figure_of(row: RunRow, label: str) -> Figure | None:
    return next((one for one in row.figures if one.label == label), None)


def value_of(row: RunRow, label: str) -> float | None:
    found = figure_of(row, label)
    return found.value if found else None


def grouped(
    on_page: list[RunRow],
    matching: list[RunRow],
    wish: Wish,
    figure: str,
    now: dict[str, str],
    known: Facts,
) -> list[Group]:
    """Groups in the order of their first row; counts and sparklines are of all that matches."""
    if wish.group not in GROUPS:
        rows = [_shown(row, figure, now) for row in on_page]
        return [Group("", rows, len(matching), spark_of(matching, figure))] if rows else []
    members: dict[str, list[RunRow]] = {}
    for row in matching:
        members.setdefault(known[row.folder].fields[wish.group] or "none", []).append(row)
    shown: dict[str, list[Shown]] = {}
    for row in on_page:
        shown.setdefault(known[row.folder].fields[wish.group] or "none", []).append(_shown(row, figure, now))
    return [
        Group(name, rows, len(members[name]), spark_of(members[name], figure)) for name, rows in shown.items()
    ]


def _shown(row: RunRow, figure: str, now: dict[str, str]) -> Shown:
    return Shown(row, key_of(row), now.get(row.folder, ""), figure_of(row, figure))


def spark_of(rows: Iterable[RunRow], label: str) -> Spark | None:
    """The figure of these runs over time; None for fewer than two values, or values of several units."""
    found = ((row.created_utc, figure_of(row, label)) for row in rows) if label else ()
    points = sorted(((at, one) for at, one in found if one and one.value is not None), key=lambda two: two[0])
    if len(points) < 2 or len({one.unit for _, one in points}) > 1:
        return None
    values = [one.value or 0.0 for _, one in points]
    low, high = min(values), max(values)
    wide, tall = SPARK
    step = max(1, len(values) // 240)
    drawn = values[::step]
    across, up = wide / max(1, len(drawn) - 1), (tall - 4) / ((high - low) or 1)
    places = [f"{at * across:.1f},{tall - 2 - (value - low) * up:.1f}" for at, value in enumerate(drawn)]
    unit = points[0][1].unit
    first, last, least, most = (f"{one:.4g} {unit}".strip() for one in (values[0], values[-1], low, high))
    return Spark(" ".join(places), first, last, least, most, len(values))
