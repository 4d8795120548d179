"""How a verdict stands beside the figures that rest on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from lab.core.words import printable
from lab.recordings.lacks import AXES, Axis, Lack, verdict_of

AT_LEAST, AT_MOST = "at least", "at most"


def bound(lacks: Sequence[Lack], *axes: Axis) -> str:
    """`at least` for counts and times that rest on `axes` (all of them if none is named) of which rows are
    known to be lost, else "". Idle time is then AT_MOST, and a share is one of what was recorded."""
    return AT_LEAST if any(verdict_of(lacks, axis) == "lossy" for axis in axes or AXES) else ""


def marked(word: str) -> str:
    """`at least ` before a number, or nothing."""
    return f"{word} " if word else ""


def idle_bound(lacks: Sequence[Lack]) -> str:
    """`at most ` where GPU rows are lost, or copies were not traced: what ran in them reads as idle time."""
    lost = bound(lacks, "gpu") or any(lack.axis == "gpu" and lack.untraced for lack in lacks)
    return marked(AT_MOST if lost else "")


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
        "lacks": [lack_json(lack) for lack in lacks],
    }


def lack_json(lack: Lack) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(lack)
    return found
