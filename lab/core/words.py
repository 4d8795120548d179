"""Small helpers for sentences that people read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# C0 but newline and tab, DEL, C1, and what turns the direction of text: a terminal obeys them.
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# A sign before a word or a number, as in `-inf`, does not start a formula.
_FORMULA = re.compile(r"[\t\r]|\s*(?:[=@]|[+-](?=.*[(|!]))")


def printable(text: str) -> str:
    """`text` with control characters as `\\x1b`: a recording's names must not command the terminal."""
    return _COMMANDS.sub(lambda match: ascii(match[0])[1:-1], text)


def plural(count: int, noun: str, many: str | None = None) -> str:
    """`1 step`, `2 steps`, `1,024 launches`: the number and the noun that goes with it."""
    return f"{count:,} {noun if count == 1 else many or _many(noun)}"


def _many(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "z", "ch", "sh")) else f"{noun}s"


def first_few(texts: Sequence[str], limit: int = 4, *, between: str = ", ") -> str:
    """`a, b, c, d and 3 more`."""
    hidden = len(texts) - limit
    return between.join(texts[:limit]) + (f" and {hidden:,} more" if hidden > 0 else "")


def listed(head: str, lines: Sequence[str], limit: int = 20) -> str:
    """`head:` with the lines below it; beyond `limit` lines, only how many more there are."""
    hidden = [f"and {len(lines) - limit:,} more"] if len(lines) > limit else []
    return "\n  ".join([f"{head}:", *lines[:limit], *hidden])


def ranks_text(ranks: Sequence[int], limit: int = 8) -> str:
    """`rank 3`; `ranks 0, 1 and 14 more`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {first_few([str(rank) for rank in ranks], limit)}"


def size_text(size_bytes: float) -> str:
    """`14.5 GB`, `3.2 MB` or `0.7 kB`, in the largest unit of which there is a tenth."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB")):
        if size_bytes >= factor / 10:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes / 1e3:.1f} kB"


def inert(value: Any) -> Any:
    """A cell with a quote before it where a spreadsheet would run it as a formula."""
    is_formula = isinstance(value, str) and _FORMULA.match(value)
    return f"'{value}" if is_formula else value
