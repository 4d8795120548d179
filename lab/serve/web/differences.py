"""What differs between runs: the facts of their manifests, clocks sampled beside their steps, key figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from lab.core.words import plural
from lab.errors import LabError
from lab.power.sampling import COLUMNS, SAMPLES
from lab.serve.rows import Figure, RunRow, text_of
from lab.serve.walk import opened

Facts = dict[tuple[str, str], str]  # (group, name) -> value
ClocksOf = Callable[[RunRow], Facts]
MOST_FILES = 32  # steps of a run
MOST_BYTES = 1 << 20  # of one of them
# (label, column, step, unit): what differs by less is the same.
SHOWN = (
    ("SM clock", "sm_clock_mhz", 15, "MHz"),  # the drivers' own steps
    ("memory clock", "mem_clock_mhz", 15, "MHz"),
    ("power", "power_w", 20, "W"),
    ("temperature", "temperature_c", 5, "°C"),
)


@dataclass(frozen=True)
class Field:
    """One fact of several runs; `same` where all agree."""

    group: str
    name: str
    values: list[str]

    @property
    def is_recorded(self) -> bool:
        return any(self.values)

    @property
    def same(self) -> bool:
        return len(set(self.values)) == 1


def facts_of(row: RunRow) -> Facts:
    """What the manifest says of a run: lab, machine, image, versions, environment and configuration."""
    facts = {
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
    facts |= {("versions", name): value for name, value in row.versions.items()}
    facts |= {("environment", name): value for name, value in row.env.items()}
    facts |= {("configuration", name): text_of(value) for name, value in row.config.items()}
    return facts


def fields_of(rows: Sequence[RunRow], clocks_of: ClocksOf) -> list[Field]:
    """Every fact of these runs and their clocks, those that differ first."""
    facts = [facts_of(row) | clocks_of(row) for row in rows]
    names = dict.fromkeys(name for fact in facts for name in fact)
    fields = [Field(group, name, [fact.get((group, name), "") for fact in facts]) for group, name in names]
    return sorted(fields, key=lambda field: field.same)


def changed(base: RunRow, head: RunRow, clocks_of: ClocksOf) -> list[Field]:
    return [field for field in fields_of([base, head], clocks_of) if not field.same]


def previous_run(rows: Sequence[RunRow], row: RunRow) -> RunRow | None:
    """The last run of the same room before this one, of the same model where there is one."""
    older = [
        run
        for run in rows
        if run.room == row.room
        and run.created_utc < row.created_utc
        and run.state not in ("unreadable", "analysis")
    ]
    return max(older, key=lambda run: (run.model == row.model, run.created_utc), default=None)


def clocks_of(folder: Path, row: RunRow) -> Facts:
    """Medians over all samples of a run's steps while its GPUs worked; {} where none were taken."""
    from lab.recordings.gpu_state import IDLE, REASONS

    samples = [
        sample for step in row.steps[:MOST_FILES] for sample in _samples(folder, f"{step.folder}/{SAMPLES}")
    ]
    busy = [sample for sample in samples if not int(sample.get("throttle_bits", 0)) & IDLE] or samples
    clocks: Facts = {}
    for label, column, step, unit in SHOWN:
        values = [one[column] for one in busy if column in one]
        if values:
            clocks["clocks", label] = f"about {step * round(median(values) / step):,} {unit}"
    slowed = [
        words for bit, words in REASONS.items() if any(int(one.get("throttle_bits", 0)) & bit for one in busy)
    ]
    if busy:
        clocks["clocks", "slowed by"] = ", ".join(slowed) or "nothing seen"
    if len(row.steps) > MOST_FILES:
        clocks["clocks", "of"] = f"the first {plural(MOST_FILES, 'step')}"
    return clocks


def _samples(folder: Path, name: str) -> Iterator[dict[str, float]]:
    """The readings of one file, without lines that were cut."""
    try:
        file = opened(folder, name)
    except LabError:
        return
    with file:
        text = file.read(MOST_BYTES).decode("ascii", "replace")
    for line in text.splitlines()[1:]:
        cells = line.split(",")
        if len(cells) != len(COLUMNS):
            continue
        try:
            values = {name: float(cell) for name, cell in zip(COLUMNS[3:], cells[3:], strict=True) if cell}
        except ValueError:
            continue
        if all(abs(value) < 1e9 for value in values.values()):  # neither NaN nor beyond any sensor
            yield values


def figure_labels(rows: Iterable[RunRow]) -> list[str]:
    """Labels of numeric figures, those of most runs first."""
    counts: dict[str, int] = {}
    for row in rows:
        for label in {figure.label for figure in row.figures if figure.value is not None}:
            counts[label] = counts.get(label, 0) + 1
    return sorted(counts, key=lambda label: (-counts[label], label))[:40]


def figure_of(row: RunRow, label: str) -> Figure | None:
    return next((figure for figure in row.figures if figure.label == label), None)


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
    labels = dict.fromkeys(figure.label for row in rows for figure in row.figures)
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
