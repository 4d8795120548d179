"""What the terminal shows of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lab.report.tables import terminal_table
from lab.rooms.kernels.catalogue.build import Catalogue

COLUMNS = ["kernel", "class", "op", "phase", "count", "dur_sum_us", "dur_median_us", "time_share"]


def terminal_text(verdict: Sequence[str], catalogue: Catalogue, page: Path) -> str:
    """The verdict, the problems, the launches that take most time, and where the page is."""
    lines = [
        verdict[0],
        *(f"- {sentence}" for sentence in verdict[1:]),
        *(f"! {text}" for text in catalogue.problems),
        "",
        terminal_table(shortened(catalogue.unique[COLUMNS].head(12)), width=118),
        "",
        f"report: {page}",
    ]
    return "\n".join(lines)


def shortened(frame: pd.DataFrame, max_chars: int = 40) -> pd.DataFrame:
    """Long texts cut in the middle, for a terminal."""
    table: pd.DataFrame = frame.map(lambda cell: _cut(cell, max_chars) if isinstance(cell, str) else cell)
    return table


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 14]}…{text[-13:]}"
