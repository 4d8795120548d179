"""False alarms of `lab check` on real processes: the same program as BASE and as HEAD, again and again.

    python -m bench.gate_aa [--checks 100]
    python -m bench.gate_aa --simulate 20000 [--only "two speeds"]    # drawn processes, no program

Each check runs as a user's would: fresh processes, interleaved, the first of each side dropped, looks at 3, 6
and 12 processes a side. The allowed slowdown is 0, so that every `regression` is a false alarm; of equal
sides the gate may call one in 200 slower. The first check measures the A/A floors that all use. The program
is a loop of Python, 12 steps of some milliseconds.

`--simulate N` draws the times of N checks for each kind of machine and judges them as the command does, at
every look and by a second set: how often are equal sides called slower, and how often is a true slowdown
proven, with A/A floors and without. Two metrics a check (kernel time and step time), limit 0 or 2 %.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.table import Row, measured
from lab.compare.check.confirm import confirmed, shows_all
from lab.compare.check.floors import Floors, of_processes
from lab.compare.check.gate import judge
from lab.compare.check.looks import LOOKS, share_of, share_within
from lab.compare.check.repeat import repeat, schedule
from lab.compare.check.samples import METRICS, Process
from lab.compare.check.sides import sides
from lab.compare.check.signatures import EXCLUDED, UNSURE, quickly
from lab.stats.gate import LEVEL

PROGRAM = """
import sys, time
times = []
for _ in range(14):
    begin = time.perf_counter()
    sum(i * i for i in range(30_000))
    times.append((time.perf_counter() - begin) * 1e3)
open(sys.argv[1], "w").write('{"step_ms": [' + ", ".join(map(str, times[2:])) + "]}")
"""


MOST, EQUAL = LOOKS[-1], 8
Draw = Callable[[np.random.Generator, int], np.ndarray]  # (checks, sets, 12) logs of equal processes
NORMAL = 0.02


def _normal(rng: np.random.Generator, checks: int) -> np.ndarray:
    return rng.normal(0, NORMAL, (checks, 5, MOST))


def _tails(rng: np.random.Generator, checks: int) -> np.ndarray:
    return NORMAL * rng.standard_t(3, (checks, 5, MOST))


def _outliers(rng: np.random.Generator, checks: int) -> np.ndarray:
    return rng.normal(0, 0.005, (checks, 5, MOST)) + 0.2 * (rng.random((checks, 5, MOST)) < 0.1)


def _two_speeds(rng: np.random.Generator, checks: int) -> np.ndarray:
    return rng.normal(0, 0.001, (checks, 5, MOST)) + 0.08 * rng.integers(0, 2, (checks, 5, MOST))


def _seldom_slow(rng: np.random.Generator, checks: int) -> np.ndarray:
    return rng.normal(0, 0.001, (checks, 5, MOST)) + 0.08 * (rng.random((checks, 5, MOST)) < 0.15)


def _noisier(base: float, head: float) -> Draw:
    """The sides scatter more, or less, than BASE did when the floors were measured."""

    def draw(rng: np.random.Generator, checks: int) -> np.ndarray:
        return _normal(rng, checks) * np.array([base, head, base, head, 1.0])[:, None]

    return draw


def _drifting(path: Callable[[np.random.Generator, int], np.ndarray]) -> Draw:
    """path: (checks, 48) what the machine adds to each process in the order in which they run."""

    def draw(rng: np.random.Generator, checks: int) -> np.ndarray:
        logs, added = _normal(rng, checks), path(rng, checks)
        order = schedule((MOST,))[2:]
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
    "twice the spread of its floors": _noisier(2.0, 2.0),
    "three times": _noisier(3.0, 3.0),
    "a third": _noisier(1 / 3, 1 / 3),
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


def simulated(checks: int, only: str) -> None:
    print("machine, slowdown, limit: proven slower by the first set | by both (with floors; without)")
    for name, draw in MACHINES.items():
        if only in name:
            _show(name, lambda rng, n, draw=draw: draw(rng, n), checks, 0.0, 0.0)  # type: ignore[misc]
    for spread, slow in TRUE:
        if only in (name := f"{spread:.1%} spread"):

            def draw(rng: np.random.Generator, n: int, by: float = spread / NORMAL) -> np.ndarray:
                return by * _normal(rng, n)

            _show(name, draw, checks // 10, slow, 0.02)


def _show(name: str, draw: Draw, checks: int, slow: float, limit: float) -> None:
    both = []
    for with_floors in (True, False):
        logs = draw(np.random.default_rng(17), checks)
        logs[:, [1, 3]] += np.log1p(slow)
        first, second, processes = _judged(logs, limit, with_floors)
        both.append(f"{first / checks:.2%} | {second / checks:.2%}, {processes:.1f} processes a side")
    print(f"{name}, {slow:+.0%}, {limit:.0%}: {both[0]}; {both[1]}", flush=True)


def _judged(logs: np.ndarray, limit: float, with_floors: bool) -> tuple[int, int, float]:
    """logs (checks, 5, 12): BASE and HEAD, their second sets, the A/A processes.

    -> checks that some look called slower, those that a second set confirmed, mean processes a side.
    """
    rng = np.random.default_rng(5)
    # Kernel time is 0.9 of the step, and has a tenth of the scatter that the rest of the step has of its own.
    times = np.stack([0.9e7 * np.exp(logs), 1e7 * np.exp(logs + rng.normal(0, 0.002, logs.shape))], axis=-1)
    going, proven, kept = np.ones(len(logs), dtype=bool), np.zeros(len(logs), dtype=bool), 0
    used = np.full(len(logs), float(MOST))
    for n in LOOKS:
        sure = np.stack([_sure(times[..., at], n, limit, with_floors) for at in range(len(METRICS))])
        ended = going & (sure == EXCLUDED).all(axis=0)
        used[ended], going = n, going & ~ended
        for check in np.flatnonzero(going & (sure == UNSURE).any(axis=0)).tolist():
            base, head, base_2, head_2, equal = (_processes(one) for one in times[check])
            floors = of_processes(equal[:EQUAL], {}, {}) if with_floors else None
            verdict = judge(base[:n], head[:n], limit, share=share_of(n), floors=floors)
            if verdict.outcome == "undecided":
                continue
            going[check], used[check] = False, n
            if verdict.outcome == "regression":
                proven[check] = True
                took = next(k for k in LOOKS if k == n or _agree(verdict, base_2, head_2, floors, k, n))
                share = share_within(took, n)
                verdict = confirmed(verdict, base_2[:took], head_2[:took], floors, share)
                kept, used[check] = kept + (verdict.outcome == "regression"), n + took
                going[check] = verdict.outcome != "regression" and n < MOST
    return int(proven.sum()), kept, float(used.mean())


def _agree(verdict, base, head, floors: Floors | None, k: int, n: int) -> bool:  # type: ignore[no-untyped-def]
    return shows_all(verdict, base[:k], head[:k], floors, share_within(k, n))


def _sure(times: np.ndarray, n: int, limit: float, with_floors: bool) -> np.ndarray:
    """What is sure of each check without its degrees of freedom, by `lab.compare.signatures.quickly`."""
    a, b = times[:, 0, :n].T, times[:, 1, :n].T
    equal = times[:, 4, :EQUAL].tolist() if with_floors else [()] * len(times)
    limits = np.full(len(times), max(limit, 1e-12))
    return quickly(a, b, limits, equal, 1 - (1 - LEVEL) * share_of(n))[0]


def _processes(times: np.ndarray) -> list[Process]:
    return [Process(dict(zip(METRICS.values(), one, strict=True)), {}, steps=9) for one in times.tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", type=int, default=100)
    parser.add_argument("--simulate", type=int, help="checks of each kind that are drawn, and run no program")
    parser.add_argument("--only", default="", help="with --simulate: kinds whose name has this")
    asked = parser.parse_args()
    if asked.simulate:
        return simulated(asked.simulate, asked.only)
    checks = asked.checks
    found: Counter[str] = Counter()
    counts, widths, floors = Counter[int](), [], []
    with tempfile.TemporaryDirectory() as root:
        os.environ["XDG_STATE_HOME"] = str(Path(root) / "state")
        program = Path(root) / "work.py"
        program.write_text(PROGRAM)
        command = [sys.executable, "-I", "-S", str(program), "{out}"]
        for number in range(checks):
            with sides(root, root) as both:
                verdict = repeat(both, command, Path(root) / str(number), 0.0, lambda _: None)
            (metric,) = verdict.metrics
            found[verdict.outcome] += 1
            counts[metric.n_base] += 1
            widths.append(metric.detectable or 0.0)
            floors.append(metric.floor or 0.0)
            faster = metric.high is not None and metric.high < 0
            found["faster"] += faster
            print(
                f"{number + 1}: {verdict.outcome} after {metric.n_base} a side, {metric.change:+.2%}",
                flush=True,
            )
    middle = sorted(widths)[len(widths) // 2]
    wrong = f"{found['regression']} called slower, {found['faster']} called faster"
    measured(Row("`lab check` of equal sides: false alarms", size=f"{checks} checks", cost=wrong))
    floor = sorted(floors)[len(floors) // 2]
    print(f"processes a side: {dict(sorted(counts.items()))}; median of what could be seen: {middle:.1%}")
    print(f"median floor at the last look: {floor:.1%}")


if __name__ == "__main__":
    main()
