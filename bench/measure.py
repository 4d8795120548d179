"""Run a piece of Python in a process of its own and take its CPU seconds and peak memory."""

from __future__ import annotations

import ctypes
import os
import re
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

_PR_SET_CHILD_SUBREAPER = 36
# Users have bytecode; without it lab alone would pay for compiling, since peers were installed with theirs.
_ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


REPORT = """import atexit as _atexit, os as _os
_atexit.register(lambda: _os.write({}, open("/proc/self/status", "rb").read()))
"""


class Cost(NamedTuple):
    cpu_s: float
    peak_mb: float


def cost(code: str, *argv: str, python: str = sys.executable, codes: Sequence[int] = (0,)) -> Cost:
    """CPU seconds (user + system) and peak resident MB of a Python process that runs `code`.

    The process reports its peak itself: what wait4 knows counts the memory of this one before exec.
    """
    told, say = os.pipe()
    command = [python, "-c", REPORT.format(say) + textwrap.dedent(code), *argv]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_ENV, pass_fds=(say,)
    )
    os.close(say)
    with os.fdopen(told) as report:
        status_text = report.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in codes:
        raise SystemExit(f"the measured program failed with {child.returncode}: {python} -c\n{code}")
    (peak_kb,) = re.findall(r"^VmHWM:\s+(\d+) kB", status_text, re.MULTILINE)
    return Cost(usage.ru_utime + usage.ru_stime, int(peak_kb) / 1024)


def whole_cost(command: Sequence[str], tree: str | None = None) -> tuple[Cost, int]:
    """Cost of a command with every process that it leaves behind, and its exit code. tree: of another lab.

    Processes whose parent has ended come to this one (Linux), so that their time is not lost.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    environment = {**_ENV, "PYTHONPATH": tree} if tree else _ENV
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen(command, env=environment, cwd=tree, **quiet)  # type: ignore[call-overload]
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    cpu_s, peak_kb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss
    while True:
        try:
            _, _, usage = os.wait3(0)
        except ChildProcessError:
            return Cost(cpu_s, peak_kb / 1024), child.returncode
        cpu_s, peak_kb = cpu_s + usage.ru_utime + usage.ru_stime, max(peak_kb, usage.ru_maxrss)


def median_cost(repeats: int, code: str, *argv: str, python: str = sys.executable) -> Cost:
    return median_of([cost(code, *argv, python=python) for _ in range(repeats)])


def side_by_side(repeats: int, *programs: Callable[[], Cost]) -> list[Cost]:
    """The median cost of each; they take turns, so that whatever else the machine does meets them alike."""
    rounds = [[program() for program in programs] for _ in range(repeats)]
    return [median_of(costs) for costs in zip(*rounds, strict=True)]


def median_of(costs: Sequence[Cost]) -> Cost:
    return Cost(statistics.median(c.cpu_s for c in costs), statistics.median(c.peak_mb for c in costs))
