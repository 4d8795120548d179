"""Key figures over runs: looked up, compared, by setting, as chart and sparkline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from lab.core.words import plural
from lab.serve.rows import Figure, RunRow, text_of
from lab.serve.web.differences import ClocksOf, Field, changed
from lab.stats.means import mean_interval

MOST_CHANGES = 12
MOST_DRAWN = 40  # settings in one chart
SPARK = (120, 24)  # px


def figure_labels(rows: Iterable[RunRow]) -> list[str]:
    """Labels of numeric figures, those of most runs first."""
    counts: dict[str, int] = {}
    for row in rows:
        for label in {one.label for one in row.figures if one.value is not None}:
            counts[label] = counts.get(label, 0) + 1
    return sorted(counts, key=lambda label: (-counts[label], label))[:40]


def figure_of(row: RunRow, label: str) -> Figure | None:
    return next((one for one in row.figures if one.label == label), None)


def unit_of(rows: Iterable[RunRow], label: str) -> str:
    """The unit in which most of these runs give the figure."""
    counts: dict[str, int] = {}
    for row in rows:
        if (figure := figure_of(row, label)) and figure.value is not None:
            counts[figure.unit] = counts.get(figure.unit, 0) + 1
    return max(counts, key=lambda unit: (counts[unit], unit), default="")


def value_of(row: RunRow, label: str, unit: str) -> float | None:
    """None without the figure, and for one in another unit: numbers of two units are not compared."""
    figure = figure_of(row, label)
    return figure.value if figure and figure.unit == unit else None


def is_elsewhere(row: RunRow, label: str, unit: str) -> bool:
    """Whether a run has this figure as a number in another unit."""
    figure = figure_of(row, label)
    return figure is not None and figure.value is not None and figure.unit != unit


def is_bound(row: RunRow, label: str) -> bool:
    """Whether a run's figure is a lower bound."""
    figure = figure_of(row, label)
    return figure is not None and figure.is_bound


def setting_of(row: RunRow) -> str:
    """Room and configuration as text: runs that agree in it repeat each other."""
    config = ", ".join(f"{name} {value}" for name, value in config_of(row).items())
    return f"{row.room}: {config or 'no configuration recorded'}"[:300]


def config_of(row: RunRow) -> dict[str, str]:
    """The configuration without the seed, which differs between repeats."""
    return {name: text_of(value) for name, value in row.config.items() if name != "seed"}


@dataclass(frozen=True)
class FigureLine:
    """One figure of several runs; changes are against the first run, "" where numbers cannot be compared."""

    label: str
    figures: list[Figure | None]
    changes: list[str]


def figure_lines(rows: Sequence[RunRow]) -> list[FigureLine]:
    labels = dict.fromkeys(one.label for row in rows for one in row.figures)
    return [_line(rows, label) for label in labels]


def _line(rows: Sequence[RunRow], label: str) -> FigureLine:
    figures = [figure_of(row, label) for row in rows]
    return FigureLine(label, figures, [_change(figures[0], figure) for figure in figures])


def _change(base: Figure | None, head: Figure | None) -> str:
    """`+12.5 %`; of shares the difference in points, because a percentage of a percentage reads as either."""
    if not base or not head or base.value is None or head.value is None or head.unit != base.unit:
        return ""
    if head.unit == "%":
        return f"{head.value - base.value:+.3g} points"
    return f"{100 * (head.value / base.value - 1):+.1f} %" if base.value else ""


@dataclass(frozen=True)
class Setting:
    """Runs of one setting: their mean and its 95 % interval over runs; None for a single run."""

    name: str
    values: list[tuple[RunRow, float]]
    mean: float
    low: float | None
    high: float | None


def settings_of(rows: Sequence[RunRow], label: str) -> list[Setting]:
    """The figure's values by setting (room and configuration), oldest first, in the unit of most runs."""
    unit = unit_of(rows, label)
    members: dict[str, list[tuple[RunRow, float]]] = {}
    for row in sorted(rows, key=lambda row: row.created_utc):
        value = value_of(row, label, unit)
        if value is not None:
            members.setdefault(setting_of(row), []).append((row, value))
    names = short_names({name: values[0][0] for name, values in members.items()})
    return [_setting(names[name], values) for name, values in members.items()]


def short_names(settings: dict[str, RunRow]) -> dict[str, str]:
    """Name each setting by what differs between them; those that would share a name keep their own."""
    configs = {name: config_of(row) for name, row in settings.items()}
    recorded = [config for config in configs.values() if config]
    keys = dict.fromkeys(key for config in recorded for key in config)
    differs = [key for key in keys if len({config.get(key) for config in recorded}) > 1]
    several = len({row.room for row in settings.values()}) > 1
    names = {}
    for name, config in configs.items():
        words = ", ".join(f"{key} {config[key]}" for key in differs if key in config)
        words = words or ("" if config else "no configuration recorded")
        room = settings[name].room if several or not words else ""
        names[name] = ": ".join(filter(None, (room, words)))[:120]
    taken = list(names.values())
    return {name: short if taken.count(short) == 1 else name for name, short in names.items()}


def _setting(name: str, values: list[tuple[RunRow, float]]) -> Setting:
    mean, low, high = mean_interval([value for _, value in values])
    return Setting(name, values, mean, *((low, high) if len(values) > 1 else (None, None)))


@dataclass(frozen=True)
class Change:
    """A figure's step between two consecutive runs of one setting, and what differs between them."""

    base: RunRow
    head: RunRow
    base_value: float
    head_value: float
    fields: list[Field]

    @property
    def percent(self) -> float:
        return 100 * (self.head_value / self.base_value - 1)


def changes_of(settings: Sequence[Setting], clocks_of: ClocksOf) -> list[Change]:
    """The largest relative changes of a figure from one run to the next of its setting."""
    pairs = [
        (abs(y / x - 1), a, b, x, y)
        for setting in settings
        for (a, x), (b, y) in zip(setting.values, setting.values[1:], strict=False)
        if x and x != y
    ]
    return [
        Change(a, b, x, y, [fact for fact in changed(a, b, clocks_of) if fact.name != "command"])
        for _, a, b, x, y in sorted(pairs, key=lambda pair: -pair[0])[:MOST_CHANGES]
    ]


def chart_of(settings: list[Setting], label: str, unit: str) -> str:
    """The figure of every run, in order of time, and beside them each setting's mean with its interval."""
    roles = ("computation", "communication", "ok", "memcpy", "warn", "unknown")
    rows = {row.folder: row for one in settings for row, _ in one.values}
    by_time = sorted(rows.values(), key=lambda row: row.created_utc)
    order = {row.folder: index for index, row in enumerate(by_time)}
    beside = len(order) + max(1, len(order) // 12)  # where the means stand, right of the runs
    series = []
    for index, setting in enumerate(settings[:MOST_DRAWN]):
        points = [
            [order[row.folder], value, f"{row.folder}: {value:g} {unit}\n{row.created_utc[:16]}"]
            for row, value in setting.values
        ]
        if setting.low is not None:
            mean = f"{setting.name}\nmean of {plural(len(points), 'run')}: {setting.mean:.4g} {unit}"
            words = f"{mean} ({setting.low:.4g} to {setting.high:.4g})"
            across = beside + index * max(0.25, len(order) / 60)
            points.append([across, setting.mean, words, setting.low, setting.high])
        series.append({"name": setting.name[:60], "role": roles[index % len(roles)], "points": [points]})
    marks = [[index, text] for index, text in enumerate(_times(by_time)) if text]
    if any(one.low is not None for one in settings):
        marks.append([beside, "means"])
    spec = {"x": "runs in order of time", "views": [{"y": f"{label} {unit}".strip()}], "series": series}
    return msgspec.json.encode({**spec, "names": None, "marks": marks, "diagonal": False}).decode()


def _times(rows: list[RunRow]) -> list[str]:
    """Label each run with its day where a new one begins; with the time if all are of one day."""
    texts = [row.created_utc[:10] for row in rows]
    if len(set(texts)) == 1:
        texts = [row.created_utc[11:16] for row in rows]
    return [text if index == 0 or text != texts[index - 1] else "" for index, text in enumerate(texts)]


@dataclass(frozen=True)
class Spark:
    """A figure over time as an SVG polyline: `points`, and the values at its ends."""

    label: str
    points: str
    oldest: str
    newest: str
    low: str
    high: str
    count: int


def spark_of(rows: Iterable[RunRow], label: str) -> Spark | None:
    """The figure of these runs over time; None for fewer than two values, and for what is not one line.

    That is: values in several units, of several rooms or models, or of recordings that may be of anything.
    """
    having = [(row, figure) for row in rows if (figure := figure_of(row, label)) and figure.value is not None]
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
    points = [
        f"{index * across:.1f},{tall - 2 - (value - low) * up:.1f}" for index, value in enumerate(drawn)
    ]
    unit = having[0][1].unit
    oldest, newest, lowest, highest = (
        f"{value:.4g} {unit}".strip() for value in (values[0], values[-1], low, high)
    )
    return Spark(label, " ".join(points), oldest, newest, lowest, highest, len(values))
