"""What a recording lacks: one row per finding, and the verdict that follows from them.

Three axes: `gpu` (GPU operations whose launch was recorded), `host` (API calls whose GPU operations were
recorded), `ops` (the framework's operators). Four places: `head` and `tail` are usually the edges of the
recorded window, a `hole` is never innocent, `all` is the whole axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from lab.core.words import plural

Axis = Literal["gpu", "host", "ops"]
Place = Literal["head", "tail", "hole", "all"]
Verdict = Literal["complete", "lossy", "unknown"]

AXES: tuple[Axis, ...] = ("gpu", "host", "ops")
# Rows that cannot stand as they are: clocks that differ, rows that outlast their successor, without a name,
# there twice, without a time, faster than their board. How many are lost cannot be known.
CONTRADICTIONS = ("B", "K", "P", "U", "W", "Z")
EXCESSES = ("P", "W")  # of these, the ones that make times too long and counts too high
SHORTFALLS = ("B",)  # and the ones that make times too short


class Lack(msgspec.Struct, frozen=True, omit_defaults=False):
    """Something that is missing from a recording, or may be.

    n of `of` are missing; share is of the axis' unit (launches for `gpu`, GPU time for `host`, events for
    `ops`), None where it cannot be known. `unknown` marks a finding that proves nothing: what it covers was
    not recorded, so it may be there or not. `untraced` marks a domain that the recorder was not asked for: it
    is printed, and leaves the verdict on what was recorded alone. process is an index of `Capture.processes`,
    -1 for all of them.
    """

    axis: Axis
    place: Place
    rule: str
    process: int
    n: int
    of: int
    share: float | None
    text: str
    unknown: bool = False
    untraced: bool = False


def missing(
    axis: Axis, place: Place, rule: str, n: int, of: int, noun: str, words: str, process: int = -1
) -> Lack:
    """The finding that n of `of` are lost: `3 of 10 GPU rows are missing`."""
    return Lack(axis, place, rule, process, n, of, n / of, f"{n:,} of {plural(of, noun)} {words}")


def doubt(
    axis: Axis,
    rule: str,
    text: str,
    *,
    place: Place = "all",
    process: int = -1,
    n: int = 0,
    of: int = 0,
    untraced: bool = False,
) -> Lack:
    """A finding that proves nothing, of which the share cannot be known."""
    return Lack(axis, place, rule, process, n, of, None, text, unknown=True, untraced=untraced)


def verdict_of(lacks: Sequence[Lack], axis: Axis | None = None) -> Verdict:
    """The worst of the findings, of one axis or of all: something is lost, unknown, or nothing is missing."""
    on = [lack for lack in counted(lacks) if axis in (None, lack.axis)]
    if any(not lack.unknown for lack in on):
        return "lossy"
    return "unknown" if on else "complete"


def counted(lacks: Sequence[Lack]) -> list[Lack]:
    """The findings that a verdict rests on: all but those of what was never asked for."""
    return [lack for lack in lacks if not lack.untraced]


def holes(lacks: Sequence[Lack]) -> list[Lack]:
    """The findings that no edge of the recorded window explains: rows that are lost, or contradict others."""
    return [
        lack
        for lack in lacks
        if lack.place in ("hole", "all") and (not lack.unknown or lack.rule in CONTRADICTIONS)
    ]
