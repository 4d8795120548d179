"""What differs between runs: the facts of their manifests, and the clocks sampled beside their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from lab.core.words import plural
from lab.errors import LabError
from lab.power.sampling import COLUMNS, SAMPLES
from lab.serve.confine import opened
from lab.serve.rows import RunRow, text_of

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
