"""The smallest case that still fails, and the few lines that run it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lab.core.files import write_atomic
from lab.rooms.semicrf.workload.cases.case import Case

REPRODUCE = '''\
"""Run the case beside this file on one backend and compare it with float64. Exit code 1: it still fails."""
import functools
import pathlib
import sys

import torch

from lab.errors import LabError
from lab.rooms.semicrf.model import api
from lab.rooms.semicrf.workload.cases.case import Case
from lab.rooms.semicrf.workload.cases.solution import difference, solve
from lab.rooms.semicrf.workload.faults import planted

BACKEND, PLANT, PADDING = {backend!r}, {plant!r}, {padding!r}
case = Case.load(pathlib.Path(__file__).with_name("case.npz"))
tested = case.to("cuda" if torch.cuda.is_available() else "cpu")
if PADDING:
    tested = tested.padded(PADDING, float("nan"))
partition = planted(PLANT, functools.partial(api.log_partition, backend=BACKEND))
for attempt in range(1, 21):  # a race shows in one of many runs
    try:
        text = difference(case, solve(tested, partition))
    except LabError as error:  # of numbers that a sound kernel does not look at
        text = error
    if text:
        sys.exit(f"run {{attempt}}: {{text}}")
print("20 runs agree with float64")
'''


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case found that still fails: one sequence, its frames halved from both ends as far as
    possible.
    """
    for b in range(len(case.lengths_B)):
        if fails(case.rows([b])):
            case = case.rows([b])
            break
    for smaller in (_without_last, Case.without_first):
        step = int(case.lengths_B.max()) // 2
        while step >= 1:
            remaining = int(case.lengths_B.min()) - step
            if remaining >= 1 and fails(smaller(case, step)):
                case = smaller(case, step)
                step = min(step, int(case.lengths_B.max()) // 2)
            else:
                step //= 2
    return case


def _without_last(case: Case, frames: int) -> Case:
    return case.cut(int(case.lengths_B.max()) - frames)


def save_reproducer(case: Case, folder: Path, *, backend: str, plant: str | None, padding: int) -> list[str]:
    """case.npz and reproduce.py in `folder`; -> their names."""
    case.save(folder / "case.npz")
    write_atomic(folder / "reproduce.py", REPRODUCE.format(backend=backend, plant=plant, padding=padding))
    return ["case.npz", "reproduce.py"]
