"""Reading Kineto traces: scanner, plain reader and the standard library's json; CPU seconds and memory."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from bench import traces
from bench.measure import cost, side_by_side
from bench.table import Row, at_least, line_of, measured

OURS = "import sys; from lab.recordings.kineto import read_kineto; read_kineto(sys.argv[1])"
PLAIN = "import os; os.environ['LAB_READER'] = 'plain'; " + OURS
CACHED = """
    import sys; from pathlib import Path; from lab.recordings.load import load_capture
    load_capture(sys.argv[1], cache=Path(sys.argv[2]))
"""
PEER = """
    import gzip, json, sys
    with (gzip.open if sys.argv[1].endswith(".gz") else open)(sys.argv[1], "rb") as file:
        json.load(file)
"""
GROWTH_MB = (50, 200, 800)
SECOND_LOOK = 5.0
LARGE = 20_000_000  # below, a look is lost in the noise of the imports
IMPORT = "import lab.recordings.kineto"
IMPORT_CACHED = "import lab.recordings.cache"


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
    peer_words = f"json {peer.cpu_s:.2f} CPU s, {peer.peak_mb:.0f} MB"
    size = f"{path.stat().st_size / 1e6:.1f} MB"
    for what, one in (("scanner", ours), ("plain reader", plain)):
        measured(
            Row(
                f"reading, {what}: {path.name}",
                size=size,
                cost=f"{one.cpu_s:.2f} CPU s",
                memory_mb=one.peak_mb,
                peer=peer_words,
                ratio=peer.cpu_s / one.cpu_s,
            )
        )
    # The start of Python is no part of a look: each one's imports alone are taken off.
    starts = side_by_side(3, partial(cost, IMPORT), partial(cost, IMPORT_CACHED))
    first, again = (
        max(one.cpu_s - start.cpu_s, 1e-3) for one, start in zip((ours, cached), starts, strict=True)
    )
    ratio = first / again
    limit, met = at_least(ratio, SECOND_LOOK) if path.stat().st_size > LARGE else ("", None)
    measured(
        Row(
            f"second look, from the cache, without imports: {path.name}",
            size=size,
            cost=f"{again:.3f} CPU s",
            memory_mb=cached.peak_mb,
            peer=f"the first look {first:.3f} CPU s",
            ratio=ratio,
            limit=limit,
            met=met,
        )
    )


def growth(folder: Path) -> None:
    """Time and memory as the same steps go on for longer."""
    costs = {mb: cost(OURS, str(traces.big(folder, mb))) for mb in GROWTH_MB}
    a, b = line_of({mb: one.cpu_s for mb, one in costs.items()})
    for mb, one in costs.items():
        measured(
            Row(
                "reading, scanner, as the run goes on",
                size=f"{mb} MB",
                cost=f"{one.cpu_s:.2f} CPU s",
                memory_mb=one.peak_mb,
                start_s=a,
                s_per_mb=b,
            )
        )
