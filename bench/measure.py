"""Run a piece of Python in a process of its own and take its CPU seconds and peak memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

# Users have bytecode; without it lab alone would pay for compiling, since peers were installed with theirs.
_ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Cost(NamedTuple):
    cpu_s: float
    peak_mb: float


def cost(code: str, *argv: str, python: str = sys.executable, codes: Sequence[int] = (0,)) -> Cost:
    """CPU seconds (user + system) and peak resident MB of a Python process that runs `code`."""
    command = [python, "-c", textwrap.dedent(code), *argv]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_ENV)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in codes:
        raise SystemExit(f"the measured program failed with {child.returncode}: {python} -c\n{code}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def median_cost(repeats: int, code: str, *argv: str, python: str = sys.executable) -> Cost:
    return median_of([cost(code, *argv, python=python) for _ in range(repeats)])


def side_by_side(repeats: int, *programs: Callable[[], Cost]) -> list[Cost]:
    """The median cost of each; they take turns, so that whatever else the machine does meets them alike."""
    rounds = [[program() for program in programs] for _ in range(repeats)]
    return [median_of(costs) for costs in zip(*rounds, strict=True)]


def median_of(costs: Sequence[Cost]) -> Cost:
    return Cost(statistics.median(c.cpu_s for c in costs), statistics.median(c.peak_mb for c in costs))
