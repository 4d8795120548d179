"""How an operation was attributed."""

from __future__ import annotations

SAME, CROSS, GRAPH_LAUNCH, AMBIGUOUS, OUTSIDE, UNATTRIBUTED = 0, 1, 2, 3, 4, 5
RULES = ("same", "cross", "graph", "ambiguous", "outside", "unattributed")
