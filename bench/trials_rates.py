"""False statements of `lab run trials`: matrices in which nothing is there to say.

    python -m bench trials_rates [MATRICES]

2 to 8 cells of 20 trials at rates of 10, 30 and 50 %, in both designs: cells that share their seeds, where
a seed decides the trial in all cells or in part, and cells with seeds of their own. Trials rotate over two
GPUs, whose temperature drifts. Each statement of the verdict is counted: a comparison, order, dependence,
place, temperature, clock. The bar is 5 % of the matrices.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np

from bench.table import Row, measured
from lab.rooms.trials.config import Trial
from lab.rooms.trials.decide import LESS, MORE, decide

MATRICES = 500
TRIALS = 20
DESIGNS = {"shared seeds": 1.0, "half of it the seed's": 0.5, "own seeds": 0.0}
NAMES = ("order", "dependence", "place", "temperature", "clock")


def main() -> None:
    matrices = int(sys.argv[1]) if len(sys.argv) > 1 else MATRICES
    for number, (design, share) in enumerate(DESIGNS.items()):
        counts = false_statements(matrices, share, seed=number)
        detail = ", ".join(f"{name} {count}" for name, count in counts.most_common() if name != "any")
        print(f"{design}: {counts['any']} of {matrices} matrices ({detail})")
        rate = counts["any"] / matrices
        cost, size = f"{rate:.1%} of matrices", f"{matrices} matrices of 2 to 8 cells"
        measured(Row(f"false statements, {design}", size, cost, limit="at most 5 %", met=rate <= 0.05))


def false_statements(matrices: int, share: float, seed: int) -> Counter[str]:
    """Statements over this many matrices; `any`: matrices with one at least."""
    random, counts = np.random.default_rng(seed), Counter[str]()
    for _ in range(matrices):
        cells, rate = int(random.integers(2, 9)), float(random.choice([0.1, 0.3, 0.5]))
        trials = matrix(random, cells, rate, share)
        decision = decide(trials, [f"c{n}" for n in range(cells)], "c0", stop=False, until=None)
        statements = [name for name in NAMES if decision.confounds.shows(name)]
        statements += [c.verdict for c in decision.comparisons if c.verdict in (LESS, MORE)]
        counts.update({*statements, *(["any"] if statements else [])})
    return counts


def matrix(random: np.random.Generator, cells: int, rate: float, share: float) -> list[Trial]:
    """Trials of equal cells in blocks of random order. share: of trials that the block's seed decides."""
    by_seed = random.random(TRIALS) < rate
    trials = []
    for block in range(TRIALS):
        for position, cell in enumerate(random.permutation(cells)):
            order = block * cells + position
            is_shared = random.random() < share
            fails = by_seed[block] if is_shared else random.random() < rate
            trials.append(
                Trial(
                    cell=f"c{cell}",
                    trial=block,
                    verdict="fail" if fails else "pass",
                    order=order,
                    seed=block if share else 1000 * int(cell) + block,
                    gpus=f"GPU-{order % 2}",
                    temperature_c=50 + order / cells + float(random.normal()),
                    sm_clock_mhz=1900 - order / cells + float(random.normal(0, 5)),
                )
            )
    return trials


if __name__ == "__main__":
    main()
