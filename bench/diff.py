"""`lab diff` of two Kineto traces of 50 MB against reading both (bar: 1.5x), plainly and by module."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from bench import traces
from bench.measure import cost, side_by_side
from bench.table import Row, at_most, measured

MODULES = traces.DATA / "captures" / "h200_decoder" / "infer_eager_modules.json.gz"
BOTH = """
    import sys
    from lab.recordings.load import load_capture
    for path in sys.argv[1:]:
        load_capture(path)
"""
DIFF = """
    import sys
    from pathlib import Path
    from lab.compare.diff.comparison import compare_sides
    compare_sides(Path(sys.argv[1]), Path(sys.argv[2]), by=sys.argv[3:])
"""
SIZE_MB = 50
ROUNDS = 5


def main() -> None:
    if not MODULES.exists():
        measured(Row("`lab diff` of two traces", absent="the recordings with modules are not here"))
        return
    with tempfile.TemporaryDirectory() as name:
        pair = [str(traces.repeated(MODULES, Path(name) / f"{side}.json", SIZE_MB)) for side in "ab"]
        cost(BOTH, pair[0])  # compiles the scanner
        programs = [
            partial(cost, BOTH, *pair),
            partial(cost, DIFF, *pair),
            partial(cost, DIFF, *pair, "module"),
        ]
        read, *compared = side_by_side(ROUNDS, *programs)
    for label, one in zip(("", " --by module"), compared, strict=True):
        limit, met = at_most(one.cpu_s / read.cpu_s, 1.5, "x of reading both")
        measured(
            Row(
                f"`lab diff{label}`",
                size=f"two of {SIZE_MB} MB",
                cost=f"{one.cpu_s:.2f} CPU s",
                memory_mb=one.peak_mb,
                peer=f"reading both {read.cpu_s:.2f} CPU s",
                ratio=read.cpu_s / one.cpu_s,
                limit=limit,
                met=met,
            )
        )


if __name__ == "__main__":
    main()
