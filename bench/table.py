"""What each bench measured, kept in docs/speed.md: a section per bench, a table per machine it ran on."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
COLUMNS = ("what", "size", "cost", "a, s", "b, ms/MB", "memory, MB", "peer", "ratio", "limit")
NO_GPU, AND_GPU = "not measured: needs a GPU", " + "
_SECTION = re.compile(r"^## `python -m bench (\w+)`\n\n", re.M)
_TABLE = re.compile(r"^(?=Measured )", re.M)


@dataclass(frozen=True)
class Row:
    """One figure. cost and peer have their units; of s = a + b * MB start_s is a; ratio is how often ours
    fits into the peer's. met says whether `limit` is kept, None where nothing was judged.

    absent: why the figure, or its peer, was not measured.
    """

    what: str
    size: str = ""
    cost: str = ""
    memory_mb: float | None = None
    start_s: float | None = None
    s_per_mb: float | None = None
    peer: str = ""
    ratio: float | None = None
    limit: str = ""
    met: bool | None = None
    absent: str = ""

    def cells(self) -> list[str]:
        judged = {True: ": met", False: ": **missed**", None: ""}[self.met]
        return [
            self.what,
            self.size,
            self.cost or f"not measured: {self.absent}",
            "" if self.start_s is None else f"{self.start_s:.2f}",
            "" if self.s_per_mb is None else f"{1e3 * self.s_per_mb:.2f}",
            "" if self.memory_mb is None else f"{self.memory_mb:.0f}",
            self.peer or (self.cost and self.absent),
            "" if self.ratio is None else f"{self.ratio:.2f}x" if self.ratio < 10 else f"{self.ratio:.1f}x",
            f"{self.limit}{judged}",
        ]


_rows: list[Row] = []


def measured(row: Row) -> None:
    """Print a figure and keep it for the table."""
    _rows.append(row)
    print("  " + " · ".join(cell for cell in row.cells() if cell), flush=True)


def taken() -> list[Row]:
    """What was measured since the last call."""
    rows = list(_rows)
    _rows.clear()
    return rows


def at_least(ratio: float, limit: float) -> tuple[str, bool]:
    """limit and met of a ratio that must not be smaller."""
    return f"≥ {limit:g}x", ratio >= limit


def at_most(value: float, limit: float, unit: str) -> tuple[str, bool]:
    return f"≤ {limit:g}{' ' if unit != 'x' else ''}{unit}", value <= limit


def line_of(points: Mapping[float, float]) -> tuple[float, float]:
    """a and b of seconds = a + b * MB, least squares over {MB: seconds} of at least two sizes."""
    b, a = statistics.linear_regression(list(points), list(points.values()))
    return a, b


def table_of(rows: Sequence[Row], when: str) -> str:
    """What one run of a bench measured: when and where, and a line per figure, without empty columns.

    A size that all figures share is part of when and where.
    """
    if len(rows) > 1 and rows[0].size and len({row.size for row in rows}) == 1:
        when, rows = f"{when}, {rows[0].size}", [replace(row, size="") for row in rows]
    columns = [cells for cells in zip(COLUMNS, *(row.cells() for row in rows), strict=True) if any(cells[1:])]
    header, *lines = (_joined(line) for line in zip(*columns, strict=True))
    return "\n".join([f"Measured {when}:\n", header, f"|{'---|' * len(columns)}", *lines, ""])


def merged(text: str, tables: Mapping[str, str], order: Sequence[str]) -> str:
    """`text` with the tables of the benches in `tables` replaced; the others stay as they were measured.

    So do those of a machine with a GPU when a bench runs on one without, and the other way round.
    """
    intro, *parts = _SECTION.split(text)
    kept: dict[str, list[str]] = {name: [] for name in order}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        if name in kept:
            kept[name] = [table.strip() + "\n" for table in _TABLE.split(body) if table.strip()]
    kept |= {name: _beside(kept[name], table) for name, table in tables.items()}
    sections = [f"## `python -m bench {name}`\n\n" + "\n".join(kept[name]) for name in order if kept[name]]
    return "\n".join([intro.rstrip("\n") + "\n", *sections])


def _beside(kept: Sequence[str], table: str) -> list[str]:
    """The tables of one bench: the new one, and those of the other kind of machine.

    Lines that say a GPU is needed stand only where no machine with one has measured.
    """
    others = [_measured_lines(other) for other in kept if has_gpu(other) != has_gpu(table)]
    others = [other for other in others if other]
    measured_here = _measured_lines(table) if others else table
    return [measured_here, *others] if measured_here else others


def _measured_lines(table: str) -> str:
    """A table without its lines that wait for a GPU; "" if none is left."""
    when, gap, header, rule, *lines = table.splitlines()
    lines = [line for line in lines if NO_GPU not in line]
    return "\n".join([when, gap, header, rule, *lines, ""]) if lines else ""


def has_gpu(table: str) -> bool:
    """Whether the machine that a table begins with has a GPU: see `when_and_where`."""
    return AND_GPU in table.splitlines()[0]


def when_and_where() -> str:
    """Date, commit, load and machine: without them no figure means anything."""
    git = ["git", "-C", str(PAGE.parent)]
    commit = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    edits = subprocess.run(
        [*git, "status", "--porcelain", "--", "../lab", "../bench"],
        capture_output=True,
        text=True,
        check=False,
    )
    changed = " with edits" if edits.stdout.strip() else ""
    return (
        f"{date.today()}, {commit.stdout.strip() or 'no commit'}{changed}, load {os.getloadavg()[0]:.1f}, "
        f"{os.cpu_count()} x {_processor()}{_gpu()}"
    )


def _gpu() -> str:
    try:
        import torch
    except ModuleNotFoundError:
        return ""
    return f"{AND_GPU}{torch.cuda.get_device_name(0)}" if torch.cuda.is_available() else ""


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return re.sub(r" +\d+-Core Processor$", "", found[1]) if found else "unknown processor"


def _joined(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
