"""How a verdict stands beside the figures that rest on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from lab.core.words import printable
from lab.recordings.lacks import AXES, EXCESSES, SHORTFALLS, Axis, Lack, counted, verdict_of

AT_LEAST, AT_MOST, ABOUT = "at least", "at most", "about"


def bound(lacks: Sequence[Lack], *axes: Axis) -> str:
    """Word to put before counts and times that rest on `axes` (all of them if none is named), or "".

    `at least` where rows are known to be lost or too short, `at most` where rows last too long or are there
    twice, `about` for both, and where one of them meets another doubt. Idle time is the other way round
    (`idle_bound`); a share is one of what was recorded.
    """
    doubts = [lack for lack in counted(lacks) if lack.axis in (axes or AXES)]
    lost = any(not lack.unknown or lack.rule in SHORTFALLS for lack in doubts)
    inflated = any(lack.rule in EXCESSES for lack in doubts)
    if inflated:
        return AT_MOST if all(lack.rule in EXCESSES for lack in doubts) else ABOUT
    # Across two clocks a time may be too long or too short, so neither bound holds.
    clocks_differ = any(lack.rule == "K" for lack in doubts)
    return "" if not lost else ABOUT if clocks_differ else AT_LEAST


def marked(word: str) -> str:
    """`at least ` before a number, or nothing."""
    return f"{word} " if word else ""


def idle_bound(lacks: Sequence[Lack]) -> str:
    """`at most ` where GPU rows are lost, or copies were not traced: what ran in them reads as idle time;
    `at least ` where rows last too long, which covers idle time."""
    untraced = any(lack.axis == "gpu" and lack.untraced for lack in lacks)
    opposite = {AT_LEAST: AT_MOST, AT_MOST: ABOUT if untraced else AT_LEAST, ABOUT: ABOUT}
    return marked(opposite.get(bound(lacks, "gpu"), AT_MOST if untraced else ""))


def busy_and_idle(lacks: Sequence[Lack]) -> str:
    """`busy at least, idle at most`, as a column of a table says it; "" where both stand as they are."""
    idle = idle_bound(lacks).strip()
    # Copies that were not traced are missing from the busy time, too.
    parts = {"busy": bound(lacks, "gpu") or (AT_LEAST if idle else ""), "idle": idle}
    return ", ".join(f"{name} {word}" for name, word in parts.items() if word)


def integrity_lines(lacks: Sequence[Lack], *, processes: int = 1) -> list[str]:
    """The verdict on one line, then one line per finding."""
    axes = ", ".join(f"{axis} {verdict_of(lacks, axis)}" for axis in AXES)
    lines = [f"recording: {verdict_of(lacks)} ({axes})"]
    return lines + [f"  {sentence}" for sentence in sentences(lacks, processes=processes)]


def sentences(lacks: Iterable[Lack], *, processes: int = 1) -> list[str]:
    """One sentence per finding: axis, process if there are several, what is missing, by which rule."""
    return [
        f"{lack.axis}{_process(lack, processes)}: {printable(lack.text.replace(chr(10), ' '))} [{lack.rule}]"
        for lack in lacks
    ]


def _process(lack: Lack, processes: int) -> str:
    return f", process {lack.process}" if processes > 1 and lack.process >= 0 else ""


def as_json(lacks: Sequence[Lack]) -> dict[str, Any]:
    """`verdict`, `axes` and `lacks` as --json prints them."""
    return {
        "verdict": verdict_of(lacks),
        "axes": {axis: verdict_of(lacks, axis) for axis in AXES},
        "lacks": msgspec.to_builtins(list(lacks)),
    }
