"""Reading Kineto traces, beside the standard library's json; CPU seconds and memory."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from bench import traces
from bench.measure import cost, side_by_side
from bench.table import Row, line_of, measured

OURS = "import sys; from lab.recordings.kineto import read_kineto; read_kineto(sys.argv[1])"
PEER = """
    import gzip, json, sys
    with (gzip.open if sys.argv[1].endswith(".gz") else open)(sys.argv[1], "rb") as file:
        json.load(file)
"""
GROWTH_MB = (50, 200, 800)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in [*traces.recorded().values(), traces.big(folder, 200)]:
            show(path)
        growth(folder)


def show(path: Path) -> None:
    ours, peer = side_by_side(3, partial(cost, OURS, str(path)), partial(cost, PEER, str(path)))
    measured(
        Row(
            f"reading: {path.name}",
            size=f"{path.stat().st_size / 1e6:.1f} MB",
            cost=f"{ours.cpu_s:.2f} CPU s",
            memory_mb=ours.peak_mb,
            peer=f"json {peer.cpu_s:.2f} CPU s, {peer.peak_mb:.0f} MB",
            ratio=peer.cpu_s / ours.cpu_s,
        )
    )


def growth(folder: Path) -> None:
    """Time and memory as the same steps go on for longer: the longest, and the line through all."""
    costs = {mb: cost(OURS, str(traces.big(folder, mb))) for mb in GROWTH_MB}
    a, b = line_of({mb: one.cpu_s for mb, one in costs.items()})
    longest = max(costs)
    measured(
        Row(
            "reading, as the run goes on",
            size=f"{longest} MB",
            cost=f"{costs[longest].cpu_s:.2f} CPU s",
            memory_mb=costs[longest].peak_mb,
            start_s=a,
            s_per_mb=b,
        )
    )
