"""Kernels: every launch of a model, replayed, proven to be the same kernel, and measured in joules.

Question: which kernels does a model launch, from which op with which arguments, where do its time and its
energy go, and do the parts add up to the whole?

Method: generation runs once under the profiler with every forward marked, and once more unprofiled under a
recorder of the dispatcher. The catalogue joins both: launch -> owning op -> exact overload -> arguments, each
with its source. Replay runs those ops in isolation; a replayed launch counts only if kernel, grid and block
equal the original's.

Source: the public seed (anuragdutt/piep_kernel_execution_graph), whose commands and files are kept and whose
published numbers the audit tests.

What it cannot tell: kernels in a CUDA graph have no op; a trace without the recorder lacks some arguments
(each has its source); with random weights the times are those of the architecture, not of the trained model's
texts; on a CPU ops stand in for kernels.
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
    """Whether `folder` holds a profile of this room: traces of ranks with their recorded ops."""
    from lab.rooms.kernels.trails import trails

    return any(trail.recorded_ops for trail in trails(folder))


def watcher(run: Run) -> Silent:
    """The room has no log of its own."""
    return Silent()


def analyse(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Tables, figures and report.html in `out`: of a profile, a replay or an energy run."""
    from lab.errors import needs

    with needs("analysis"):
        from lab.rooms.kernels.findings import analyse_kernels
    return analyse_kernels(folder, out, run, progress)


def analyse_kernels(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """The section `kernels` of `lab analyze`: the catalogue and page of any recording of kernels."""
    from lab.errors import needs

    with needs("analysis"):
        from lab.rooms.kernels import findings
    return findings.analyse_kernels(folder, out / "kernels", run, progress)
