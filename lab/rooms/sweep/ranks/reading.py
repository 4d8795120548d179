"""The options with which `lab ranks` commands read recordings and write, and what they mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import needs
from lab.rooms.sweep.gemm.options import IN_PLACE, JSON, QUIET, SALVAGE, WORKERS
from lab.terminal.options import Decorator, out, with_options

if TYPE_CHECKING:
    from lab.rooms.sweep.ranks.read import Setting
    from lab.terminal.console import Console

READING: Decorator = with_options(
    out("Where files go. [default: FOLDER/ranks for a run of lab, else experiments/NAME_analysis/ranks]"),
    *(IN_PLACE, SALVAGE, WORKERS, QUIET, JSON),
)


@dataclass(frozen=True)
class Reading:
    """What one command was given of READING."""

    out: Path | None
    in_place: bool
    salvage: bool
    workers: int | None
    quiet: bool
    as_json: bool

    @property
    def console(self) -> Console:
        from lab.terminal.console import Console

        return Console(quiet=self.quiet)

    def target(self, folder: Path) -> Path:
        """Where the files about a recording go. Raises MissingError if there is none."""
        from lab.rooms.sweep.gemm.places import places

        return self.out or places(folder, in_place=self.in_place).home / "ranks"

    def settings(self, folder: Path, *, ranks: re.Pattern[str] | None = None) -> list[Setting]:
        with needs("analysis"):
            from lab.rooms.sweep.gemm.session import num_workers, show_progress
            from lab.rooms.sweep.ranks.read import read_settings

        return read_settings(
            folder,
            ranks=ranks,
            workers=self.workers or min(2, num_workers()),
            salvage=self.salvage,
            progress=show_progress(self.console.detail),
        )
