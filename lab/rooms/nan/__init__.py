"""Nan: where the first NaN or Inf of an LLM is born.

Question: which module, and below it which instruction, turns finite numbers into NaN or infinity, and does it
reach the model's output?

Method: each experiment changes one thing against `baseline`, proves that the change took effect, and runs in
a process of its own. `nan` watches what every module takes and gives, counting on the GPU once per forward;
`nixnan` runs the same experiment, watch off, under the user's nixnan.so, which checks instructions. Both are
joined into a chain: seen in instructions, stored, in a module, in the logits, in the text.

Source: the experiments of the SC25 floating-point tutorial (ganeshutah/SC25-Floating-Point-Tutorial), whose
names and files are kept; nixnan (parfloat/nixnan).

What it cannot tell: what happens between two modules, beyond the place; what nixnan does not instrument
(Hopper's tensor cores, conversions, 8-bit arithmetic); whether a benign NaN stays benign on another prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lab.core.plan import Silent

if TYPE_CHECKING:
    from lab.core.plan import Findings
    from lab.core.run import Run


def recognises(folder: Path) -> bool:
    """Whether `folder` holds published experiments of the tutorial's layout, or records of guards."""
    from lab.rooms.nan.gather import is_published

    return is_published(folder) or any(folder.glob("guard_*.json"))


def watcher(run: Run) -> Silent:
    """The room writes no log of its own."""
    return Silent()


def analyse(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Results and logs -> tables, figures, findings and report.html in `out`."""
    from lab.errors import needs

    with needs("analysis"):
        from lab.rooms.nan.findings import analyse_nan
    return analyse_nan([folder], out, [run], progress)
