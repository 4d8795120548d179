"""Sweep: how collective settings starve GEMMs.

Question: which number of NCCL/RCCL channels and threads per block lets a distributed training step run
fastest, and what does each setting do to the GEMMs that share the GPU with the collectives?

Method: the same training runs once per (threads, channels) pair, in random order, each rank under the
profiler. From the traces: computation, exposed communication and idle time by interval unions; every GEMM
instance by op and shape; the effective setting, from the kernels' grids and blocks and NCCL's own log
(requested is not effective).

Source: the public aorta sweep (ROCm/aorta), whose folder layout, log and summary are kept; TraceLens'
definitions of the timeline (AMD-AGI/TraceLens).

What it cannot tell: one run of each setting has no error bar (use --repeats); kernels launched before the
window have no shapes; a CPU run has no channels, so it tests the path and measures the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.core.plan import Findings
    from lab.core.run import Run
    from lab.rooms.sweep.journal import Journal


def recognises(folder: Path) -> bool:
    """Whether `folder` holds the traces of a sweep, recorded by lab or not."""
    from lab.rooms.sweep.layout import find_configs

    return folder.is_dir() and bool(find_configs(folder, may_be_empty=True))


def watcher(run: Run) -> Journal:
    from lab.rooms.sweep.journal import Journal

    return Journal(run)


def analyse(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Traces -> tables -> figures, findings and report.html in `out`."""
    return _analysis("analyse_sweep")(folder, out, run, progress)


def analyse_gemm(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """The section `gemm` of `lab analyze`: as `lab gemm all`."""
    return _analysis("gemm_findings")(folder, out, run, progress)


def analyse_ranks(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """The section `ranks` of `lab analyze`: as `lab ranks`."""
    return _analysis("rank_findings")(folder, out, run, progress)


def _analysis(name: str) -> Callable[..., Findings]:
    """A function of `findings`, whose packages (pandas, matplotlib) are loaded only when it is needed."""
    from lab.errors import needs

    with needs("analysis"):
        from lab.rooms.sweep import findings
    function: Callable[..., Findings] = getattr(findings, name)
    return function
