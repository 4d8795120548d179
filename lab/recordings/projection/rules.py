"""How an operation was attributed, and which ranges are steps and warm-up."""

from __future__ import annotations

from lab.recordings.projection.phase_names import STEPS, WARMUPS

SAME, CROSS, GRAPH_LAUNCH, AMBIGUOUS, OUTSIDE, UNATTRIBUTED = 0, 1, 2, 3, 4, 5
RULES = ("same", "cross", "graph", "ambiguous", "outside", "unattributed")


def is_step(text: str) -> bool:
    return bool(STEPS.fullmatch(text))


def is_warmup(text: str) -> bool:
    return bool(WARMUPS.fullmatch(text))
