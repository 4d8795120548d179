"""How fast a run's GPUs ran and how hot: the samples beside its steps, in steps that two runs can share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from lab.core.words import plural
from lab.errors import LabError
from lab.gpus.sampling import COLUMNS, SAMPLES
from lab.serve.confine import opened
from lab.serve.rows import RunRow

MOST_FILES = 32  # steps of a run
MOST_BYTES = 1 << 20  # of one of them
# (label, column, step, unit): what differs by less is the same.
SHOWN = (
    ("SM clock", "sm_clock_mhz", 15, "MHz"),  # the drivers' own steps
    ("memory clock", "mem_clock_mhz", 15, "MHz"),
    ("power", "power_w", 20, "W"),
    ("temperature", "temperature_c", 5, "°C"),
)
Facts = dict[tuple[str, str], str]


def clocks_of(folder: Path, row: RunRow) -> Facts:
    """Medians over all samples of a run's steps while its GPUs worked; {} where none were taken."""
    from lab.recordings.gpu_state import IDLE, REASONS

    samples = [one for step in row.steps[:MOST_FILES] for one in _samples(folder, f"{step.folder}/{SAMPLES}")]
    busy = [one for one in samples if not int(one.get("throttle_bits", 0)) & IDLE] or samples
    found: Facts = {}
    for label, column, step, unit in SHOWN:
        values = [one[column] for one in busy if column in one]
        if values:
            found["clocks", label] = f"about {step * round(median(values) / step):,} {unit}"
    slowed = [
        words for bit, words in REASONS.items() if any(int(one.get("throttle_bits", 0)) & bit for one in busy)
    ]
    if busy:
        found["clocks", "slowed by"] = ", ".join(slowed) or "nothing seen"
    if len(row.steps) > MOST_FILES:
        found["clocks", "of"] = f"the first {plural(MOST_FILES, 'step')}"
    return found


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
        if all(abs(value) < 1e9 for value in values.values()):  # no NaN and nothing that no sensor says
            yield values
