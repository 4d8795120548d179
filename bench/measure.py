"""Run a piece of Python in a process of its own and take its CPU seconds and peak memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import textwrap
from typing import NamedTuple


class Cost(NamedTuple):
    cpu_s: float
    peak_mb: float


def cost(code: str, *argv: str) -> Cost:
    """CPU seconds (user + system) and peak resident MB of a Python process that runs `code`."""
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), *argv], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"the measured program failed with {child.returncode}:\n{code}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def median_cost(repeats: int, code: str, *argv: str) -> Cost:
    costs = [cost(code, *argv) for _ in range(repeats)]
    return Cost(statistics.median(c.cpu_s for c in costs), statistics.median(c.peak_mb for c in costs))
