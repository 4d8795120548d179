"""Which runs a list shows: filtered, sorted, grouped, a page at a time. Nothing here knows HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lab.serve.index import key_of
from lab.serve.live import RUNNING
from lab.serve.rows import Figure, RunRow, text_of

PAGE = 100
FIRST = ("torch", "cuda", "rocm", "nccl", "rccl", "triton")  # versions that people ask for
OWN = 3  # key figures that a row shows
SPARK = (120, 24)  # px
SORTS = ("when", "run", "room", "model", "verdict", "state", "gpus", "image", "driver", "host", "integrity")
GROUPS = ("room", "model", "setting", "verdict", "state", "gpus", "image", "driver", "host", "day")
MORE = 60  # names of configuration and versions to sort and group by
FACETS = ("room", "verdict", "state", "model")
MOST_FACETS = 8  # values of one
_TERM = re.compile(r'(-?)(?:([a-z][a-z0-9_.-]*):)?(?:"([^"]*)"|(\S+))')
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Wish:
    """What a person asked for.

    q: words that must occur; `room:nan`, `channels:28` or `torch:2.11` names a column, a configuration or a
    version; `-word` must not be. figure: "" for each run's own.
    """

    q: str = ""
    sort: str = "when"
    desc: bool = True
    group: str = ""
    figure: str = ""
    page: int = 1


class Fact(NamedTuple):
    """What filters and sorts look at: a run's fields; the same in lower case, and all its text."""

    fields: dict[str, str]
    by_name: dict[str, str]
    text: str


Facts = dict[str, Fact]  # by the run's folder


@dataclass(frozen=True)
class Shown:
    """One row of the list."""

    row: RunRow
    key: str
    now: str  # of an open run: what it is doing
    figure: Figure | None
    own: tuple[Figure, ...] = ()  # its first key figures
    versions: str = ""  # the two that say most


@dataclass(frozen=True)
class Spark:
    """A figure over time as an SVG polyline: `points`, and the values at its ends."""

    label: str
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
    """facets: values of a column and their number of runs, with what `q` becomes to see only those."""

    groups: list[Group]
    total: int
    matching: int
    pages: int
    page: int
    figures: list[str]
    figure: str
    more: list[str]
    facets: dict[str, list[tuple[str, int, str]]]
    elsewhere: int  # runs that have the figure in another unit
    live: list[Shown] = field(default_factory=list)


def listing(rows: Sequence[RunRow], wish: Wish, now: dict[str, str], known: Facts) -> Listing:
    """The page of the list that `wish` names.

    now: what each open run is doing, by its folder.
    """
    found = [row for row in rows if fits(row, wish.q, known, now)]
    labels = figure_labels(found)
    figure = wish.figure if wish.figure in labels else (labels[0] if labels else "")
    unit = unit_of(found, figure)
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
        more=more_names(found),
        facets=facets_of(found, wish.q, known),
        elsewhere=sum(is_elsewhere(row, figure, unit) for row in found),
        live=[_shown(row, figure, now) for row in rows if now.get(row.folder) == RUNNING][:20],
    )


def fits(row: RunRow, q: str, known: Facts, now: dict[str, str]) -> bool:
    """Whether every term of `q` is in the row, and no term with a minus is."""
    for minus, column, quoted, word in _TERM.findall(q.lower()):
        term = quoted or word
        if column == "state":
            text = f"{row.state} {now.get(row.folder, '')}"
        elif column:
            text = known[row.folder].by_name.get(column, "\0absent")
        else:
            text = known[row.folder].text
        if (term in text) == bool(minus):
            return False
    return True


def fact_of(row: RunRow) -> Fact:
    fields = {**row.fields(), "setting": setting_of(row)}
    # Names of configuration and versions count as text, those of the list's columns do not.
    parts = [
        f"{name.split(' ', 1)[1]} {value}" if name.startswith(("config ", "version ")) else value
        for name, value in fields.items()
    ]
    parts += [one.name for one in row.steps] + [one.reason for one in row.steps if one.reason]
    parts += [row.id, " ".join(row.command), *(one.text for one in row.findings)]
    by_name = {name.lower(): value.lower() for name, value in fields.items()}
    for name, value in fields.items():  # `channels` for `config channels`, where no column is called so
        by_name.setdefault(name.split(" ", 1)[-1].lower(), value.lower())
    return Fact(fields, by_name, "\n".join(parts).lower())


def setting_of(row: RunRow) -> str:
    """Room and configuration in words: runs that agree in it repeat each other."""
    config = ", ".join(f"{name} {value}" for name, value in config_of(row).items())
    return f"{row.room}: {config or 'no configuration recorded'}"[:300]


def config_of(row: RunRow) -> dict[str, str]:
    """The configuration without what differs between any two runs."""
    return {name: text_of(value) for name, value in row.config.items() if name != "seed"}


def more_names(rows: Iterable[RunRow]) -> list[str]:
    """`config X` and `version X` of these runs, those of most runs first."""
    counts: dict[str, int] = {}
    for row in rows:
        for name in (*(f"config {one}" for one in row.config), *(f"version {one}" for one in row.versions)):
            counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: (-counts[name], name))[:MORE]


def facets_of(rows: Sequence[RunRow], q: str, known: Facts) -> dict[str, list[tuple[str, int, str]]]:
    """For each column with several values: (value, runs, the filter with it), the most frequent first."""
    found = {}
    for column in FACETS:
        counts: dict[str, int] = {}
        for row in rows:
            value = known[row.folder].fields[column]
            if value and '"' not in value and len(value) < 60:
                counts[value] = counts.get(value, 0) + 1
        if len(counts) > 1:
            most = sorted(counts, key=lambda value: (-counts[value], value))[:MOST_FACETS]
            found[column] = [(value, counts[value], f"{q} {_term(column, value)}".strip()) for value in most]
    return found


def _term(column: str, value: str) -> str:
    return f'{column}:"{value}"' if _TERM.fullmatch(f"{column}:{value}") is None else f"{column}:{value}"


def figure_labels(rows: Iterable[RunRow]) -> list[str]:
    """Labels of numeric figures, those of most runs first."""
    counts: dict[str, int] = {}
    for row in rows:
        for label in {one.label for one in row.figures if one.value is not None}:
            counts[label] = counts.get(label, 0) + 1
    return sorted(counts, key=lambda label: (-counts[label], label))[:40]


def ordered(rows: list[RunRow], wish: Wish, figure: str, known: Facts) -> list[RunRow]:
    """Sorted; rows without the value, or with one in another unit, are last either way."""
    keys: dict[str, Any]
    if wish.sort == "figure":
        unit = unit_of(rows, figure)
        keys = {row.folder: value_of(row, figure, unit) for row in rows}
    else:
        name = wish.sort if wish.sort in SORTS or wish.sort.startswith(("config ", "version ")) else "when"
        keys = _sort_keys({row.folder: known[row.folder].fields.get(name, "") for row in rows})
    first = [row for row in rows if keys[row.folder] is not None]
    first.sort(key=lambda row: keys[row.folder], reverse=wish.desc)
    return first + [row for row in rows if keys[row.folder] is None]


def _sort_keys(texts: dict[str, str]) -> dict[str, Any]:
    """Numbers where all are, else text in which `2.9` comes before `2.11`; None for an empty one."""
    try:
        return {name: float(text) if text else None for name, text in texts.items()}
    except ValueError:
        return {name: _natural(text) if text else None for name, text in texts.items()}


def _natural(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(one), "") if one.isdecimal() else (1, 0, one) for one in _DIGITS.split(text) if one]


def figure_of(row: RunRow, label: str) -> Figure | None:
    return next((one for one in row.figures if one.label == label), None)


def unit_of(rows: Iterable[RunRow], label: str) -> str:
    """The unit that most of these runs give the figure in."""
    counts: dict[str, int] = {}
    for row in rows:
        if (found := figure_of(row, label)) and found.value is not None:
            counts[found.unit] = counts.get(found.unit, 0) + 1
    return max(counts, key=lambda unit: (counts[unit], unit), default="")


def value_of(row: RunRow, label: str, unit: str) -> float | None:
    """None without the figure, and for one in another unit: numbers of two units are not compared."""
    found = figure_of(row, label)
    return found.value if found and found.unit == unit else None


def is_elsewhere(row: RunRow, label: str, unit: str) -> bool:
    """Whether a run has this figure as a number in another unit."""
    found = figure_of(row, label)
    return found is not None and found.value is not None and found.unit != unit


def is_bound(row: RunRow, label: str) -> bool:
    """Whether a run's figure is a lower bound."""
    found = figure_of(row, label)
    return found is not None and found.least


def grouped(
    on_page: list[RunRow],
    matching: list[RunRow],
    wish: Wish,
    figure: str,
    now: dict[str, str],
    known: Facts,
) -> list[Group]:
    """Groups in the order of their first row; counts and sparklines are of all that matches."""
    if wish.group not in GROUPS and not wish.group.startswith(("config ", "version ")):
        rows = [_shown(row, figure, now) for row in on_page]
        return [Group("", rows, len(matching), spark_of(matching, figure))] if rows else []
    members: dict[str, list[RunRow]] = {}
    for row in matching:
        members.setdefault(_group(row, wish.group, known), []).append(row)
    shown: dict[str, list[Shown]] = {}
    for row in on_page:
        shown.setdefault(_group(row, wish.group, known), []).append(_shown(row, figure, now))
    chosen = {name: wish.figure or next(iter(figure_labels(members[name])), "") for name in shown}
    return [
        Group(name, rows, len(members[name]), spark_of(members[name], chosen[name]))
        for name, rows in shown.items()
    ]


def _group(row: RunRow, name: str, known: Facts) -> str:
    return known[row.folder].fields.get(name, "") or "none"


def _shown(row: RunRow, figure: str, now: dict[str, str]) -> Shown:
    own = tuple(one for one in row.figures if one.value is not None)[:OWN]
    names = sorted(row.versions, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    versions = ", ".join(f"{name} {row.versions[name]}" for name in names[:2])
    return Shown(row, key_of(row), now.get(row.folder, ""), figure_of(row, figure), own, versions)


def spark_of(rows: Iterable[RunRow], label: str) -> Spark | None:
    """The figure of these runs over time; None for fewer than two values, and for what is not one line.

    That is: values in several units, of several rooms or models, or of recordings that may be of anything.
    """
    having = [(row, one) for row in rows if (one := figure_of(row, label)) and one.value is not None]
    having.sort(key=lambda pair: pair[0].created_utc)
    kinds = {(row.room, row.model, one.unit) for row, one in having}
    if len(having) < 2 or len(kinds) > 1 or any(row.state == "analysis" for row, _ in having):
        return None
    values = [one.value or 0.0 for _, one in having]
    low, high = min(values), max(values)
    wide, tall = SPARK
    step = max(1, len(values) // 240)
    drawn = values[::step]
    across, up = wide / max(1, len(drawn) - 1), (tall - 4) / ((high - low) or 1)
    places = [f"{at * across:.1f},{tall - 2 - (value - low) * up:.1f}" for at, value in enumerate(drawn)]
    unit = having[0][1].unit
    first, last, least, most = (f"{one:.4g} {unit}".strip() for one in (values[0], values[-1], low, high))
    return Spark(label, " ".join(places), first, last, least, most, len(values))
