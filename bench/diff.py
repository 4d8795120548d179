"""`lab diff` of two Kineto traces of 50 MB against reading both (bar: 1.5x), plainly and by module."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from bench import traces
from bench.measure import cost, side_by_side

MODULES = traces.DATA / "captures" / "h200_decoder" / "infer_eager_modules.json.gz"
BOTH = """
    import sys
    from pathlib import Path
    from lab.recordings.as_trace import load_traces
    for path in sys.argv[1:]:
        load_traces(Path(path))
"""
DIFF = """
    import sys
    from pathlib import Path
    from lab.compare.diff import compare_sides
    compare_sides(Path(sys.argv[1]), Path(sys.argv[2]), by=sys.argv[3:])
"""
SIZE_MB = 50


def main() -> None:
    if not MODULES.exists():
        print(f"skipped: no recording with modules at {MODULES}")
        return
    with tempfile.TemporaryDirectory() as name:
        pair = [str(traces.repeated(MODULES, Path(name) / f"{side}.json", SIZE_MB)) for side in "ab"]
        cost(BOTH, pair[0])  # compiles the scanner
        read, plain, modules = side_by_side(
            5, partial(cost, BOTH, *pair), partial(cost, DIFF, *pair), partial(cost, DIFF, *pair, "module")
        )
    for label, one in (("compared", plain), ("compared by module", modules)):
        print(
            f"two traces of {SIZE_MB} MB, CPU: read {read.cpu_s:.2f} s {read.peak_mb:.0f} MB, "
            f"{label} {one.cpu_s:.2f} s {one.peak_mb:.0f} MB: {one.cpu_s / read.cpu_s:.2f}x"
        )


if __name__ == "__main__":
    main()
