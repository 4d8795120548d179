"""Names in a sentence."""

from __future__ import annotations

from collections.abc import Sequence


def listed(texts: Sequence[str], most: int = 6) -> str:
    """`a, b and c`; of more than `most` the first, and how many more there are."""
    more = len(texts) - most
    shown = list(texts[:most])
    if more <= 0 and len(shown) > 1:
        return f"{', '.join(shown[:-1])} and {shown[-1]}"
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
