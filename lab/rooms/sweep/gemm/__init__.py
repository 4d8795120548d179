"""The GEMM pipeline: how a GEMM's time varies under collective settings, and why.

`data` reads every trace once, in parallel, and `rank` writes the workbook of each rank (`sheets`). `steps`
does all of it, and writes the reports over ranks and settings. `variance` finds the GEMMs whose time varies
most and keeps their extremes; `beside` says what ran beside these, and compares the same shape with and
without a collective. `merge` puts all ranks on one timeline; `comparison` puts several sweeps side by side.

Here: where the pipeline reads and writes, and what a step comes back with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lab.core.run import home_of
from lab.errors import not_here
from lab.rooms.sweep.knobs import Key

ANALYSIS, MERGED = "tracelens_analysis", "merged_traces"


@dataclass(frozen=True)
class Report:
    """What one step of the pipeline wrote, and what it could not.

    missing: what was requested or found and is not in the result (exit code 1). problems: oddities of the
    input. incomplete: what the recordings lack, as far as a step tells it apart (for --require). findings:
    what the figures say, most important first.
    """

    files: list[Path] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Places:
    """Everything is written below `home`: analysis and merged traces."""

    sweep: Path
    home: Path
    analysis: Path
    merged: Path


def places(sweep: Path, out: Path | None = None, *, in_place: bool = False) -> Places:
    """A run of lab, and any folder with in_place, gets its analysis inside; others are not touched.

    Their analysis goes to experiments/NAME_analysis, as with `lab analyze`. out is the analysis folder
    itself. Raises MissingError if the sweep does not exist.
    """
    if not sweep.exists():
        raise not_here("no such sweep", sweep, "give a sweep, a folder of ranks, or one trace")
    if out is not None:
        return Places(sweep, out, out, out / MERGED)
    home = sweep if in_place and sweep.is_dir() else home_of(sweep)
    return within(sweep, home)


def within(sweep: Path, home: Path) -> Places:
    """The known folders below `home`."""
    return Places(sweep, home, home / ANALYSIS, home / MERGED)


def report_name(kind: str, setting: Key, ending: str) -> Path:
    """Path of a configuration's report: {T}thread/{kind}_reports/..{C}ch..xlsx, without unknown numbers."""
    threads, channel, algorithm, protocol, repeat = setting
    start = {"individual": "perf", "collective": "collective"}[kind]
    setting_parts = [f"{channel}ch" if channel else "", algorithm, protocol]
    parts = [start, *setting_parts, ending, f"repeat{repeat}" if repeat > 1 else ""]
    folder = Path(f"{threads}thread") if threads else Path()
    return folder / f"{kind}_reports" / f"{'_'.join(filter(None, parts))}.xlsx"
