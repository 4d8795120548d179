"""Reading Kineto traces: scanner, plain reader and the standard library's json; CPU seconds and memory."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from bench import traces
from bench.measure import Cost, cost, side_by_side

OURS = "import sys; from lab.recordings.kineto import read_kineto; read_kineto(sys.argv[1])"
PLAIN = "import os; os.environ['LAB_READER'] = 'plain'; " + OURS
CACHED = """
    import sys; from pathlib import Path; from lab.recordings.cache import load_trace
    load_trace(sys.argv[1], cache=Path(sys.argv[2]))
"""
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
            show(path, folder)
        growth(folder)


def show(path: Path, folder: Path) -> None:
    cost(CACHED, str(path), str(folder / "cache"))
    cost(OURS, str(path))  # compiles the scanner
    ours, plain, cached, peer = side_by_side(
        3,
        partial(cost, OURS, str(path)),
        partial(cost, PLAIN, str(path)),
        partial(cost, CACHED, str(path), str(folder / "cache")),
        partial(cost, PEER, str(path)),
    )
    print(
        f"{path.name}: lab {_of(ours)}, plain {_of(plain)}, from the cache {_of(cached)}, json {_of(peer)}: "
        f"{peer.cpu_s / ours.cpu_s:.1f}x faster, {peer.peak_mb / ours.peak_mb:.1f}x leaner"
    )


def growth(folder: Path) -> None:
    """Time and memory as the same steps go on for longer."""
    costs = [cost(OURS, str(traces.big(folder, mb))) for mb in GROWTH_MB]
    shown = ", ".join(f"{mb} MB {_of(one)}" for mb, one in zip(GROWTH_MB, costs, strict=True))
    print(f"growth 1x, 4x, 16x: {shown}: {costs[2].cpu_s / costs[0].cpu_s:.1f}x the time for 16x the events")


def _of(one: Cost) -> str:
    return f"{one.cpu_s:.2f} s {one.peak_mb:.0f} MB"
