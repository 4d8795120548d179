"""`make bench`: every bench in turn.

Each prints lab and its peer, measured in the same run, and their ratio.
"""

from __future__ import annotations

import importlib
import sys

BENCHES = (
    "help",
    "read_trace",
    "diff",
    "integrity",
    "tracelens",
    "collectives",
    "many_traces",
    "launch",
    "nsys_projection",
    "replay_coverage",
    "gantt",
    "nixnan_parser",
    "nan_watch",
    "nan_guard",
    "semicrf_validation",
    "semicrf",
)

if __name__ == "__main__":
    wanted = sys.argv[1:] or BENCHES
    if unknown := [name for name in wanted if name not in BENCHES]:
        sys.exit(f"there is no bench {unknown[0]!r}; there are: {', '.join(BENCHES)}")
    for name in wanted:
        module = importlib.import_module(f"bench.{name}")
        print(f"\n== {name}: {module.__doc__.splitlines()[0]}")
        module.main()
