"""How an operation was attributed, and which names of ranges are phases, steps and warm-up."""

from __future__ import annotations

import re

SAME, CROSS, GRAPH_LAUNCH, AMBIGUOUS, OUTSIDE, UNATTRIBUTED = 0, 1, 2, 3, 4, 5
RULES = ("same", "cross", "graph", "ambiguous", "outside", "unattributed")

PHASES = re.compile(
    r"(forward|backward|optimizer)([_ ](pass|step))?([_ ]\d+)?|loss|zero_grad|Optimizer\.(step|zero_grad)#.*",
    re.IGNORECASE,
)

STEPS = re.compile(
    r"((training|train|forward|measure)?[_ ]?step[_ #]?\d+|ProfilerStep#\d+|iter(ation)?[_ ]?\d+)",
    re.IGNORECASE,
)

WARMUPS = re.compile(r"warm[-_ ]?up.*", re.IGNORECASE)


def is_step(text: str) -> bool:
    return bool(STEPS.fullmatch(text))


def is_warmup(text: str) -> bool:
    return bool(WARMUPS.fullmatch(text))
