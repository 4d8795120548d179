"""What differs between runs: fields and figures side by side, and what changed when a figure did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab.serve.rows import Figure, RunRow, text_of
from lab.serve.web.listing import config_of, figure_of, setting_of, unit_of, value_of
from lab.stats.means import quantile

MOST_CHANGES = 12


Facts = dict[tuple[str, str], str]  # (group, name) -> value
More = Callable[[RunRow], Facts]  # what a run's files say beside its manifest


def _nothing(_: RunRow) -> Facts:
    return {}


@dataclass(frozen=True)
class Field:
    """One fact of several runs; `same` where all agree."""

    group: str
    name: str
    values: list[str]

    @property
    def known(self) -> bool:
        return any(self.values)

    @property
    def same(self) -> bool:
        return len(set(self.values)) == 1


def facts_of(row: RunRow) -> Facts:
    """What made the run what it is."""
    found = {
        ("run", "room"): row.room,
        ("run", "kind"): row.kind,
        ("run", "command"): " ".join(row.command),
        ("lab", "version"): row.lab,
        ("lab", "commit"): row.commit,
        ("lab", "local changes"): "" if row.dirty is None else "yes" if row.dirty else "no",
        ("machine", "host"): row.host,
        ("machine", "GPUs"): row.gpus,
        ("machine", "driver"): row.driver,
        ("machine", "power limit"): row.power_limit,
        ("image", "engine"): row.engine,
        ("image", "name"): row.image,
        ("image", "id"): row.image_id,
    }
    found |= {("versions", name): value for name, value in row.versions.items()}
    found |= {("environment", name): value for name, value in row.env.items()}
    found |= {("configuration", name): text_of(value) for name, value in row.config.items()}
    return found


def fields_of(rows: Sequence[RunRow], more: More = _nothing) -> list[Field]:
    """Every fact of these runs and `more`, those that differ first."""
    facts = [facts_of(row) | more(row) for row in rows]
    names = dict.fromkeys(name for fact in facts for name in fact)
    found = [Field(group, name, [fact.get((group, name), "") for fact in facts]) for group, name in names]
    return sorted(found, key=lambda one: one.same)


def changed(before: RunRow, after: RunRow, more: More = _nothing) -> list[Field]:
    return [one for one in fields_of([before, after], more) if not one.same]


def before(rows: Sequence[RunRow], row: RunRow) -> RunRow | None:
    """The last run of the same room before this one, of the same model where there is one."""
    older = [
        one
        for one in rows
        if one.room == row.room
        and one.created_utc < row.created_utc
        and one.state not in ("unreadable", "analysis")
    ]
    return max(older, key=lambda one: (one.model == row.model, one.created_utc), default=None)


@dataclass(frozen=True)
class FigureLine:
    """One figure of several runs; changes are against the first, "" where numbers cannot be compared."""

    label: str
    figures: list[Figure | None]
    changes: list[str]


def figure_lines(rows: Sequence[RunRow]) -> list[FigureLine]:
    labels = dict.fromkeys(one.label for row in rows for one in row.figures)
    return [_line(rows, label) for label in labels]


def _line(rows: Sequence[RunRow], label: str) -> FigureLine:
    found = [figure_of(row, label) for row in rows]
    return FigureLine(label, found, [_change(found[0], one) for one in found])


def _change(first: Figure | None, one: Figure | None) -> str:
    """`+12.5 %`; of shares the difference in points, because a percentage of a percentage reads as either."""
    if not first or not one or first.value is None or one.value is None or one.unit != first.unit:
        return ""
    if one.unit == "%":
        return f"{one.value - first.value:+.3g} points"
    return f"{100 * (one.value / first.value - 1):+.1f} %" if first.value else ""


@dataclass(frozen=True)
class Setting:
    """Runs of one setting: their mean and its 95 % interval over runs; None for a single run."""

    name: str
    values: list[tuple[RunRow, float]]
    mean: float
    low: float | None
    high: float | None


def settings_of(rows: Sequence[RunRow], label: str) -> list[Setting]:
    """The figure's values by setting (room and configuration), oldest first, with intervals.

    In the unit of most runs: `listing.unit_of`.
    """
    unit = unit_of(rows, label)
    members: dict[str, list[tuple[RunRow, float]]] = {}
    for row in sorted(rows, key=lambda one: one.created_utc):
        value = value_of(row, label, unit)
        if value is not None:
            members.setdefault(setting_of(row), []).append((row, value))
    names = short_names({name: values[0][0] for name, values in members.items()})
    return [_setting(names[name], values) for name, values in members.items()]


def short_names(settings: dict[str, RunRow]) -> dict[str, str]:
    """Each setting by what tells it from the others; one with the same words as another keeps all of its."""
    configs = {name: config_of(row) for name, row in settings.items()}
    known = [config for config in configs.values() if config]
    keys = dict.fromkeys(key for config in known for key in config)
    differs = [key for key in keys if len({config.get(key) for config in known}) > 1]
    several = len({row.room for row in settings.values()}) > 1
    found = {}
    for name, config in configs.items():
        words = ", ".join(f"{key} {config[key]}" for key in differs if key in config)
        words = words or ("" if config else "no configuration recorded")
        room = settings[name].room if several or not words else ""
        found[name] = ": ".join(filter(None, (room, words)))[:120]
    shown = list(found.values())
    return {name: short if shown.count(short) == 1 else name for name, short in found.items()}


def _setting(name: str, values: list[tuple[RunRow, float]]) -> Setting:
    numbers = [value for _, value in values]
    n, mean = len(numbers), sum(numbers) / len(numbers)
    if n < 2:
        return Setting(name, values, mean, None, None)
    deviation = (sum((value - mean) ** 2 for value in numbers) / (n - 1)) ** 0.5
    half = quantile(0.975, n - 1) * deviation / n**0.5
    return Setting(name, values, mean, mean - half, mean + half)


@dataclass(frozen=True)
class Change:
    """A figure's step between two consecutive runs of one setting, and what differs between them."""

    before: RunRow
    after: RunRow
    from_value: float
    to_value: float
    fields: list[Field]

    @property
    def percent(self) -> float:
        return 100 * (self.to_value / self.from_value - 1)


def changes_of(settings: Sequence[Setting], more: More = _nothing) -> list[Change]:
    """The largest relative changes of a figure from one run to the next of its setting."""
    pairs = [
        (abs(y / x - 1), a, b, x, y)
        for setting in settings
        for (a, x), (b, y) in zip(setting.values, setting.values[1:], strict=False)
        if x and x != y
    ]
    return [
        Change(a, b, x, y, [one for one in changed(a, b, more) if one.name != "command"])
        for _, a, b, x, y in sorted(pairs, key=lambda pair: -pair[0])[:MOST_CHANGES]
    ]
