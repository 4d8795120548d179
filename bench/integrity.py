"""Reading a trace of 55 MB with its integrity against reading alone, in turns (bar: 1.10x).

LAB_BENCH_BEFORE names a checkout of lab to compare with; without it, the same reader without its indices.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

from bench import traces
from bench.measure import cost, side_by_side
from bench.table import Row, at_most, measured

JUDGED = "import sys; from lab.recordings.load import load_capture; load_capture(sys.argv[1])"
ALONE = """
    import sys
    from lab.recordings import load
    from lab.recordings.kineto import indices
    indices.EventIndices.add = lambda self, rows: None
    load.integrity_of = load.limit_lacks = lambda capture: ()
    load.load_capture(sys.argv[1])
"""
BEFORE = """
    import sys
    sys.path.insert(0, sys.argv[2])
    from lab.recordings.load import load_capture
    load_capture(sys.argv[1])
"""
ROUNDS = 9


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = traces.big(Path(name), 55)
        before = os.environ.get("LAB_BENCH_BEFORE")
        peer = partial(cost, BEFORE, str(path), before) if before else partial(cost, ALONE, str(path))
        cost(JUDGED, str(path))  # the file into the page cache
        judged, alone = side_by_side(ROUNDS, partial(cost, JUDGED, str(path)), peer)
        ratio = judged.cpu_s / alone.cpu_s
        limit, met = at_most(ratio, 1.10, "x")
        measured(
            Row(
                "reading and judging a trace",
                size="55 MB",
                cost=f"{judged.cpu_s:.3f} CPU s",
                memory_mb=judged.peak_mb,
                peer=f"{'before' if before else 'reading alone'} {alone.cpu_s:.3f} CPU s",
                ratio=1 / ratio,
                limit=f"{limit} the time",
                met=met,
            )
        )
