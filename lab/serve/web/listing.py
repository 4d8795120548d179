"""Choose the runs that a list shows: filtered, sorted, grouped, paged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlencode

from lab.serve.index import RUNNING, key_of
from lab.serve.rows import Figure, RunRow
from lab.serve.web.differences import (
    figure_labels,
    figure_of,
    is_elsewhere,
    setting_of,
    unit_of,
    value_of,
)

PAGE = 100
PREFERRED_VERSIONS = ("torch", "cuda", "rocm", "nccl", "rccl", "triton")  # versions that people ask for
SHOWN_FIGURES = 3  # per row
SORTS = ("when", "run", "room", "model", "verdict", "state", "gpus", "image", "driver", "host", "integrity")
GROUPS = ("room", "model", "setting", "verdict", "state", "gpus", "image", "driver", "host", "day")
MOST_NAMES = 60  # of configuration and versions, to sort and group by
_TERM = re.compile(r'(-?)(?:([a-z][a-z0-9_.-]*):)?(?:"([^"]*)"|(\S+))')
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Wish:
    """The search, order, grouping and page in an address.

    q: words that must occur; `room:nan`, `channels:28` or `torch:2.11` names a column, a configuration or a
    version; `-word` must not be. figure: "" for each run's own.
    """

    q: str = ""
    sort: str = "when"
    desc: bool = True
    group: str = ""
    figure: str = ""
    page: int = 1


def wish_of(query: Mapping[str, str]) -> Wish:
    """Read a wish from an address; what is not valid becomes the default."""
    page = query.get("page", "1")
    return Wish(
        q=query.get("q", "")[:500],
        sort=query.get("sort", "when")[:40],
        desc=query.get("desc", "1") != "0",
        group=query.get("group", "")[:40],
        figure=query.get("figure", "")[:200],
        page=int(page) if page.isascii() and page.isdecimal() and len(page) < 9 else 1,
    )


def link_of(wish: Wish, **changes: Any) -> str:
    """The address of a list with some of its wish changed."""
    values = {
        "q": wish.q,
        "sort": wish.sort,
        "desc": int(wish.desc),
        "group": wish.group,
        "figure": wish.figure,
    }
    return "/?" + urlencode({name: value for name, value in {**values, **changes}.items() if value != ""})


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
    activity: str  # what an open run is doing
    figure: Figure | None
    figures: tuple[Figure, ...] = ()  # its first key figures
    versions: str = ""  # the two that say most


@dataclass(frozen=True)
class Group:
    name: str
    rows: list[Shown]
    count: int


@dataclass(frozen=True)
class Listing:
    groups: list[Group]
    total: int
    matching: int
    pages: int
    page: int
    figures: list[str]
    figure: str
    names: list[str]  # of configuration and versions
    elsewhere: int  # runs that have the figure in another unit
    live: list[Shown] = field(default_factory=list)


def listing(rows: Sequence[RunRow], wish: Wish, activities: dict[str, str], facts: Facts) -> Listing:
    """Make the page of the list that `wish` names.

    activities: what each open run is doing, by its folder.
    """
    matching = [row for row in rows if fits(row, wish.q, facts, activities)]
    labels = figure_labels(matching)
    figure = wish.figure if wish.figure in labels else (labels[0] if labels else "")
    unit = unit_of(matching, figure)
    matching = ordered(matching, wish, figure, facts)
    pages = max(1, -(-len(matching) // PAGE))
    page = min(max(1, wish.page), pages)
    on_page = matching[(page - 1) * PAGE : page * PAGE]
    return Listing(
        groups=grouped(on_page, matching, wish, figure, activities, facts),
        total=len(rows),
        matching=len(matching),
        pages=pages,
        page=page,
        figures=labels,
        figure=figure,
        names=config_and_version_names(matching),
        elsewhere=sum(is_elsewhere(row, figure, unit) for row in matching),
        live=[_shown(row, figure, activities) for row in rows if activities.get(row.folder) == RUNNING][:20],
    )


def fits(row: RunRow, q: str, facts: Facts, activities: dict[str, str]) -> bool:
    """Whether every term of `q` is in the row, and no term with a minus is."""
    for minus, column, quoted, word in _TERM.findall(q.lower()):
        term = quoted or word
        if column == "state":
            text = f"{row.state} {activities.get(row.folder, '')}"
        elif column:
            text = facts[row.folder].by_name.get(column, "\0absent")
        else:
            text = facts[row.folder].text
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
    parts += [step.name for step in row.steps] + [step.reason for step in row.steps if step.reason]
    parts += [row.id, " ".join(row.command), *(finding.text for finding in row.findings)]
    by_name = {name.lower(): value.lower() for name, value in fields.items()}
    for name, value in fields.items():  # `channels` for `config channels`, where no column is called so
        by_name.setdefault(name.split(" ", 1)[-1].lower(), value.lower())
    return Fact(fields, by_name, "\n".join(parts).lower())


def config_and_version_names(rows: Iterable[RunRow]) -> list[str]:
    """Count `config X` and `version X` over these runs; the commonest names first."""
    counts: dict[str, int] = {}
    for row in rows:
        for name in (
            *(f"config {one}" for one in row.config),
            *(f"version {version}" for version in row.versions),
        ):
            counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: (-counts[name], name))[:MOST_NAMES]


def ordered(rows: list[RunRow], wish: Wish, figure: str, facts: Facts) -> list[RunRow]:
    """Sort the rows; those without the value, or with one in another unit, are last in either direction."""
    keys: dict[str, Any]
    if wish.sort == "figure":
        unit = unit_of(rows, figure)
        keys = {row.folder: value_of(row, figure, unit) for row in rows}
    else:
        name = wish.sort if wish.sort in SORTS or wish.sort.startswith(("config ", "version ")) else "when"
        keys = _sort_keys({row.folder: facts[row.folder].fields.get(name, "") for row in rows})
    with_value = [row for row in rows if keys[row.folder] is not None]
    with_value.sort(key=lambda row: keys[row.folder], reverse=wish.desc)
    return with_value + [row for row in rows if keys[row.folder] is None]


def _sort_keys(texts: dict[str, str]) -> dict[str, Any]:
    """Numbers where all are, else text in which `2.9` comes before `2.11`; None for an empty one."""
    try:
        return {name: float(text) if text else None for name, text in texts.items()}
    except ValueError:
        return {name: _natural(text) if text else None for name, text in texts.items()}


def _natural(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(word), "") if word.isdecimal() else (1, 0, word) for word in _DIGITS.split(text) if word]


def grouped(
    on_page: list[RunRow],
    matching: list[RunRow],
    wish: Wish,
    figure: str,
    activities: dict[str, str],
    facts: Facts,
) -> list[Group]:
    """Groups in the order of their first row; counts are of all that matches."""
    if wish.group not in GROUPS and not wish.group.startswith(("config ", "version ")):
        rows = [_shown(row, figure, activities) for row in on_page]
        return [Group("", rows, len(matching))] if rows else []
    members: dict[str, list[RunRow]] = {}
    for row in matching:
        members.setdefault(_group(row, wish.group, facts), []).append(row)
    shown: dict[str, list[Shown]] = {}
    for row in on_page:
        shown.setdefault(_group(row, wish.group, facts), []).append(_shown(row, figure, activities))
    return [Group(name, rows, len(members[name])) for name, rows in shown.items()]


def _group(row: RunRow, name: str, facts: Facts) -> str:
    return facts[row.folder].fields.get(name, "") or "none"


def _shown(row: RunRow, figure: str, activities: dict[str, str]) -> Shown:
    figures = tuple(figure for figure in row.figures if figure.value is not None)[:SHOWN_FIGURES]
    names = sorted(row.versions, key=_preference)
    versions = ", ".join(f"{name} {row.versions[name]}" for name in names[:2])
    return Shown(row, key_of(row), activities.get(row.folder, ""), figure_of(row, figure), figures, versions)


def _preference(version: str) -> int:
    names = PREFERRED_VERSIONS
    return names.index(version) if version in names else len(names)
