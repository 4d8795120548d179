"""False alarms of `lab check`: the same program as BASE and as HEAD, again and again.

    python -m bench.gate_aa [--checks 100]
    python -m bench.gate_aa --simulate 2000 [--only "two speeds"] [--seed 17]    # drawn, no program

Each check runs as a user's would: fresh processes, interleaved, the first of each side dropped, looks at 3, 6
and 12 processes per side. The allowed slowdown is 0, so that every `regression` is a false alarm; of equal
sides the gate may call one in 200 slower. The program is a loop of Python, 12 steps of some milliseconds.

`--simulate N` draws the times of N checks for each kind of machine and judges them as the command does, at
every look and by a second set: how often are equal sides called slower, and how often is a true slowdown
proven. Steps of 10 ms, of which some scatter by 1 %; limit 0 or 2 %.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.table import Row, measured
from lab.compare.check import LOOKS, SHARES, confirmed, judge
from lab.compare.check.repeat import repeat, schedule, sides
from lab.compare.check.samples import Process
from lab.compare.whole import OWN

PROGRAM = """
import sys, time
times = []
for _ in range(14):
    begin = time.perf_counter()
    sum(i * i for i in range(30_000))
    times.append((time.perf_counter() - begin) * 1e3)
open(sys.argv[1], "w").write('{"step_ms": [' + ", ".join(map(str, times[2:])) + "]}")
"""


MOST = LOOKS[-1]
STEPS = 20
Draw = Callable[
    [np.random.Generator, int], np.ndarray
]  # (checks, 4, 12) logs of equal processes: BASE, HEAD, their second sets
NORMAL = 0.02


def _normal(rng: np.random.Generator, checks: int) -> np.ndarray:
    return rng.normal(0, NORMAL, (checks, 4, MOST))


def _tails(rng: np.random.Generator, checks: int) -> np.ndarray:
    return NORMAL * rng.standard_t(3, (checks, 4, MOST))


def _outliers(rng: np.random.Generator, checks: int) -> np.ndarray:
    return rng.normal(0, 0.005, (checks, 4, MOST)) + 0.2 * (rng.random((checks, 4, MOST)) < 0.1)


def _two_speeds(rng: np.random.Generator, checks: int) -> np.ndarray:
    return rng.normal(0, 0.001, (checks, 4, MOST)) + 0.08 * rng.integers(0, 2, (checks, 4, MOST))


def _seldom_slow(rng: np.random.Generator, checks: int) -> np.ndarray:
    return rng.normal(0, 0.001, (checks, 4, MOST)) + 0.08 * (rng.random((checks, 4, MOST)) < 0.15)


def _noisier(base: float, head: float) -> Draw:
    """One side scatters more than the other."""

    def draw(rng: np.random.Generator, checks: int) -> np.ndarray:
        return _normal(rng, checks) * np.array([base, head, base, head])[:, None]

    return draw


def _drifting(path: Callable[[np.random.Generator, int], np.ndarray]) -> Draw:
    """path: (checks, 48) what the machine adds to each process in the order in which they run."""

    def draw(rng: np.random.Generator, checks: int) -> np.ndarray:
        logs, added = _normal(rng, checks), path(rng, checks)
        order = schedule(MOST)[2:]
        for at, (turn, name) in enumerate([*order, *order]):
            logs[:, 2 * (at >= len(order)) + (name == "head"), turn - 1] += added[:, at]
        return logs

    return draw


def _walk(rng: np.random.Generator, checks: int) -> np.ndarray:
    return np.cumsum(rng.normal(0, NORMAL, (checks, 4 * MOST)), axis=1)


def _line(rng: np.random.Generator, checks: int) -> np.ndarray:
    return np.linspace(0, 0.2, 4 * MOST) * rng.choice([-1.0, 1.0], (checks, 1))


def _half_speed(rng: np.random.Generator, checks: int) -> np.ndarray:
    """Twice as slow from some process on."""
    return np.log(2) * (np.arange(4 * MOST) >= rng.integers(1, 4 * MOST, (checks, 1)))


def _memory(rng: np.random.Generator, checks: int) -> np.ndarray:
    """Correlated from one process to the next by 0.8."""
    found = rng.normal(0, NORMAL, (checks, 4 * MOST))
    for at in range(1, 4 * MOST):
        found[:, at] += 0.8 * found[:, at - 1]
    return found


MACHINES: dict[str, Draw] = {
    "2 % spread": _normal,
    "heavy tails (Student, 3)": _tails,
    "one process in ten 20 % slower": _outliers,
    "two speeds, 8 % apart": _two_speeds,
    "two speeds, one seldom": _seldom_slow,
    "HEAD alone four times": _noisier(1.0, 4.0),
    "drifts along a line": _drifting(_line),
    "random walk": _drifting(_walk),
    "twice as slow from some process on": _drifting(_half_speed),
    "each process like the one before": _drifting(_memory),
}
TRUE = (  # spread between processes, true slowdown
    (0.005, 0.03),
    (0.01, 0.05),
    (0.02, 0.05),
    (0.02, 0.08),
    (0.05, 0.1),
)


def simulated(checks: int, only: str, seed: int) -> None:
    print("machine, slowdown, limit: proven slower by the first set | by both, processes per side")
    for name, draw in MACHINES.items():
        if only in name:
            _show(name, draw, checks, 0.0, 0.0, seed)
    for spread, slow in TRUE:
        if only in (name := f"{spread:.1%} spread"):

            def draw(rng: np.random.Generator, n: int, by: float = spread / NORMAL) -> np.ndarray:
                return by * _normal(rng, n)

            _show(name, draw, checks // 10, slow, 0.02, seed)


def _show(name: str, draw: Draw, checks: int, slow: float, limit: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logs = draw(rng, checks)
    logs[:, [1, 3]] += np.log1p(slow)
    first = second = processes = 0
    for check in logs:
        sets = [[_process(rng, log) for log in side] for side in check]
        by_first, by_both, used = _judged(sets, limit)
        first, second, processes = first + by_first, second + by_both, processes + used
    print(
        f"{name}, {slow:+.0%}, {limit:.0%}: {first / checks:.2%} | {second / checks:.2%}, "
        f"{processes / checks:.1f}",
        flush=True,
    )


def _process(rng: np.random.Generator, log: float) -> Process:
    return Process({OWN: 1e7 * np.exp(log + rng.normal(0, 0.01, STEPS))})


def _judged(sets: list[list[Process]], limit: float) -> tuple[bool, bool, int]:
    """Whether some look called HEAD slower, whether a second set confirmed it, and the processes per side."""
    base, head, base_2, head_2 = sets
    proven, used = False, 0
    for n in LOOKS:
        verdict = judge(base[:n], head[:n], limit, share=SHARES[n])
        if verdict.outcome == "regression":
            proven = True
            used = n
            verdict = confirmed(verdict, base_2[:n], head_2[:n])
            if verdict.outcome == "undecided" and n < MOST:
                continue
        if verdict.outcome != "undecided":
            return proven, verdict.outcome == "regression", n + used
    return proven, False, MOST + used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", type=int, default=100)
    parser.add_argument("--simulate", type=int, help="checks of each kind that are drawn, and run no program")
    parser.add_argument("--seed", type=int, default=17, help="with --simulate")
    parser.add_argument("--only", default="", help="with --simulate: kinds whose name has this")
    options = parser.parse_args()
    if options.simulate:
        return simulated(options.simulate, options.only, options.seed)
    outcomes: Counter[str] = Counter()
    counts, widths = Counter[int](), []
    with tempfile.TemporaryDirectory() as root:
        program = Path(root) / "work.py"
        program.write_text(PROGRAM)
        command = [sys.executable, "-I", "-S", str(program), "{out}"]
        for number in range(options.checks):
            with sides(root, root) as both:
                verdict = repeat(both, command, Path(root) / str(number), 0.0, lambda _: None)
            mean = verdict.metrics[0]
            outcomes[verdict.outcome] += 1
            counts[mean.n_base] += 1
            widths.append(mean.detectable or 0.0)
            outcomes["faster"] += any(total.faster for total in verdict.metrics)
            print(
                f"{number + 1}: {verdict.outcome} after {mean.n_base} per side, {mean.change:+.2%}",
                flush=True,
            )
    middle = sorted(widths)[len(widths) // 2]
    wrong = f"{outcomes['regression']} called slower, {outcomes['faster']} called faster"
    measured(Row("`lab check` of equal sides: false alarms", size=f"{options.checks} checks", cost=wrong))
    print(f"processes per side: {dict(sorted(counts.items()))}; median of what could be seen: {middle:.1%}")


if __name__ == "__main__":
    main()
