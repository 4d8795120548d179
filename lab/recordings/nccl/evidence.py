"""What files of one kind say: sentences, rows for tables, and what is missing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LONGEST = 120
Document = tuple[Path, Any]  # a file, and one of the JSON values in it


@dataclass
class Evidence:
    """kind: nccl-tests, NCCL Inspector or RAS. rows: for a table; late_ranks: (rank, ms) by name.

    missing: what keeps the answer from being complete. speeds: (kind of collective, bytes, ranks) -> us.
    """

    kind: str
    sentences: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    late_ranks: list[tuple[int, float]] = field(default_factory=list)
    speeds: dict[tuple[str, int, int], float] = field(default_factory=dict)


def number(value: Any) -> float:
    """A finite number, NaN for anything else (texts of numbers count)."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        parsed = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return parsed if math.isfinite(parsed) else math.nan


def integer(value: Any, default: int = -1) -> int:
    """An integer of at most 63 bits, `default` for anything else."""
    parsed = number(value)
    if math.isnan(parsed) or abs(parsed) >= 1 << 62 or parsed != int(parsed):
        return default
    return value if isinstance(value, int) else int(parsed)


def text(value: Any) -> str:
    """Printable and short: files come from outside, and their texts reach a terminal."""
    if not isinstance(value, (str, int, float)):
        return "?"
    return "".join(char if char.isprintable() else "?" for char in str(value)[:LONGEST]).strip()


def part(value: Any, name: str) -> dict[str, Any]:
    """A part that should be an object, {} if it is not."""
    inner = value.get(name) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def parts(value: Any, name: str) -> list[dict[str, Any]]:
    """A part that should be a list of objects; anything else in it is left out."""
    inner = value.get(name) if isinstance(value, dict) else None
    return [row for row in inner if isinstance(row, dict)] if isinstance(inner, list) else []
