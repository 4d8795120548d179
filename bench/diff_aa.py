"""False findings of `lab diff`: of equal pairs, how many have anything named.

    python -m bench.diff_aa [--pairs 500] [--seed 11] [--shared ../shared/data]

Processes are drawn: each has a speed of its own (0.2 %), each kernel of a process (0.4, 0.8 or 1.5 %) and
each launch (1 %) scatters, and idle time scatters from step to step by half of itself. Pairs of one process
per side, and of three per side (`--repeat-a`, `--repeat-b`). With --shared the equal pairs of the shared
recordings, too. At most 1 % may name anything.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from bench.table import Row, at_most, measured
from lab.compare.diff.comparison import compare, compare_pair
from tests.compare.made import Program

SCATTERS = (0.004, 0.008, 0.015)
EQUAL = {
    "serve": [("a_base01.json.gz", "a_base02.json.gz")],
    "cases/compare": [
        ("step/a.json.gz", "step/b_equal.json.gz"),
        ("idle/a.json.gz", "idle/b_equal.json.gz"),
        ("shapes/a.json.gz", "shapes/b_equal.json.gz"),
        *((f"uniform/a/p{i % 3}.json.gz", f"uniform/equal/p{i // 3}.json.gz") for i in range(9)),
        *((f"gate/trace_base/p{i % 8}.json.gz", f"gate/trace_equal/p{i // 8}.json.gz") for i in range(64)),
    ],
}


def simulated(pairs: int, processes: int, seed: int) -> int:
    """Equal pairs of so many processes per side of which something is named."""
    rng = np.random.default_rng(seed + processes)
    named = 0
    with tempfile.TemporaryDirectory() as folder:
        programs = [Program(Path(folder), steps) for steps in (5, 8, 20)]
        for pair in range(pairs):
            program, each = programs[pair % 3], SCATTERS[pair // 3 % 3]
            a, b = ([program.draw(rng, each=each) for _ in range(processes)] for _ in range(2))
            named += bool(compare_pair(a[0], b[0], a[1:], b[1:]).comparison.findings)
    return named


def show(what: str, pairs: int, named: int) -> None:
    limit, met = at_most(100 * named / pairs, 1, "%")
    measured(Row(what, f"{pairs} pairs", f"{named} named", limit=limit, met=met))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--shared", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    for processes in (1, 3):
        named = simulated(options.pairs, processes, options.seed)
        show(f"`lab diff` of equal sides, {processes} processes per side", options.pairs, named)
    pairs = [
        (options.shared / folder / a, options.shared / folder / b)
        for folder, names in EQUAL.items()
        for a, b in names
    ]
    if pairs := [pair for pair in pairs if all(path.exists() for path in pair)]:
        named = sum(bool(compare(*pair).shown.findings) for pair in pairs)
        show("`lab diff` of equal shared recordings", len(pairs), named)


if __name__ == "__main__":
    main()
