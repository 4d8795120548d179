"""One audit and its answer."""

from __future__ import annotations

import msgspec

REFUSED, OK = "REFUSED", "ok"
LIMIT_SLACK = 1.05  # power above the board's limit times this is impossible


class Check(msgspec.Struct, kw_only=True):
    """What was asked, the answer, and the numbers it rests on."""

    name: str
    verdict: str  # REFUSED or ok
    what: str
    factors: dict[str, float | int | str] = {}


def make_check(name: str, refused: bool, what: str, **factors: float | int | str) -> Check:
    return Check(name=name, verdict=REFUSED if refused else OK, what=what, factors=factors)


def power_limit_checks(where: str, watts: float, limit_w: float | None) -> list[Check]:
    """A refusal if `watts` is above the board's limit; nothing if it is not, or if the limit is not known."""
    if not limit_w or watts <= LIMIT_SLACK * limit_w:
        return []
    what = f"{watts:.0f} W is above the board's limit of {limit_w:.0f} W"
    return [make_check(f"{where}: board limit", True, what, watts=round(watts, 1), limit_w=limit_w)]
