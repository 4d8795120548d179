"""Names in a sentence."""

from __future__ import annotations

from collections.abc import Sequence


def listed(texts: Sequence[str], limit: int = 6) -> str:
    """`a, b and c`; of more than `most` the first, and how many more there are."""
    hidden = len(texts) - limit
    shown = list(texts[:limit])
    if hidden <= 0 and len(shown) > 1:
        return f"{', '.join(shown[:-1])} and {shown[-1]}"
    return ", ".join(shown) + (f" and {hidden} more" if hidden > 0 else "")
