"""Nan: where the first NaN or Inf of an LLM is born.

Question: which module, and below it which instruction, turns finite numbers into NaN or Inf, and does it reach the
model's output?

Method: each experiment changes one thing against `baseline` and runs in a process of its own. `nan` watches the outputs
of every module; `nixnan` runs the same experiment, hooks off, under the user's nixnan.so, which checks instructions.

Source: the experiments of the SC25 floating-point tutorial (ganeshutah/SC25-Floating-Point-Tutorial); nixnan
(parfloat/nixnan).

What it cannot tell: this version plans the experiments (`--dry-run`); it has no workload and no analysis yet.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.errors import MissingError

if TYPE_CHECKING:
    from lab.core.run import Run


def recognises(folder: Path) -> bool:
    return False


def watcher(run: Run) -> Any:
    raise _absent()


def analyse(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Any:
    raise _absent()


def _absent() -> MissingError:
    return MissingError(
        "this version of lab plans the nan room's experiments but cannot run or analyse them",
        fix="see the plan with --dry-run",
    )
