"""Where the pipeline reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab.core.run import home_of
from lab.errors import not_here

ANALYSIS, MERGED = "tracelens_analysis", "merged_traces"


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
    itself. Raises MissingError if there is no such sweep.
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
