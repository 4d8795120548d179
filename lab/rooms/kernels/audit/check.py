"""One audit and its answer."""

from __future__ import annotations

import msgspec

REFUSED, OK = "REFUSED", "ok"
LIMIT_SLACK = 1.05  # power above the board's limit times this is impossible
CLOSURE_PCT = 10  # parts may miss the whole by this


class Check(msgspec.Struct, kw_only=True):
    """The answer in a sentence, and the numbers that it rests on."""

    name: str
    verdict: str  # REFUSED or ok
    answer: str = msgspec.field(name="what")
    factors: dict[str, float | int | str] = {}


def make_check(name: str, refused: bool, answer: str, **factors: float | int | str) -> Check:
    return Check(name=name, verdict=REFUSED if refused else OK, answer=answer, factors=factors)


def above_limit(subject: str, watts: float, limit_w: float | None) -> list[Check]:
    """A refusal if `watts` is above the board's limit; nothing if it is not, or if the limit is not known."""
    if not limit_w or watts <= LIMIT_SLACK * limit_w:
        return []
    answer = f"{watts:.0f} W is above the board's limit of {limit_w:.0f} W"
    return [make_check(f"{subject}: board limit", True, answer, watts=round(watts, 1), limit_w=limit_w)]
