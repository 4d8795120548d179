"""Nsys: what every phase of a Transformer costs the GPU, attributed to the last kernel.

Question: how long do forward, backward and optimizer take, which kernels make up that time, and how do
softmax and matrix products inside attention compare (questions a to e of the course's profiling exercise)?

Method: five model sizes, several contexts and three profile types; measured steps under NVTX ranges,
recorded by nsys, or by torch.profiler where nsys is missing or fails, and timed once more without a
profiler. Kernels go to the range that launched them: on the launching thread first, then across threads, so
that `backward` owns what autograd's worker launched. Every answer carries checks that could fail: launches
per step are integers, there are as many GEMMs as in the model, busy <= span <= wall.

Source: Stanford CS336, assignment 2, for questions, sizes and range names; the attribution and the rules of
nsys' own reports were measured on real captures (docs/nsys.md).

What it cannot tell: why a kernel is slow (no counters); what a CPU run's kernels would be (it has none);
wall times under a profiler carry its overhead, which is stated beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.core.plan import Silent
from lab.errors import MissingError, needs

if TYPE_CHECKING:
    from lab.core.run import Run


def recognises(folder: Path) -> bool:
    """Whether `folder` holds captures of this room's cells, by lab or in the published layout."""
    from lab.rooms.nsys.layout import find_cells

    return bool(find_cells(folder))


def reads(path: Path) -> bool:
    """Whether `path` is a recording, or a folder of some, that no room knows the layout of."""
    with needs("analysis"):
        from lab.rooms.nsys.captures.analysis import holds_recordings
    return holds_recordings(path)


def watcher(run: Run) -> Silent:
    """The room keeps no log of its own."""
    return Silent()


def analyse(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Any:
    """Captures -> answers a to e, tables, figures, ANALYSIS_SUMMARY.txt and report.html in `out`.

    A recording that no experiment made gets its own page: phases, classes, kernels, Gantt, integrity.
    """
    if run is None and not (folder.is_dir() and recognises(folder)):
        with needs("analysis"):
            from lab.rooms.nsys.captures.analysis import analyse_recordings
        return analyse_recordings(folder, out, progress)
    with needs("analysis"):
        from lab.rooms.nsys.findings import analyse_nsys
    return analyse_nsys(folder, out, run, progress)


def analyse_phases(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Any:
    """The section `phases` of `lab analyze`: the room's own analysis, or a page per recording.

    Raises MissingError where nothing here can have phases.
    """
    if folder.is_dir() and recognises(folder):
        return analyse(folder, out / "phases", run, progress)
    if not reads(folder):
        raise MissingError(
            "no recording with phases lies in this folder itself", location=folder, fix="name the recording"
        )
    with needs("analysis"):
        from lab.rooms.nsys.captures.analysis import analyse_recordings
    return analyse_recordings(folder, out / "phases", progress, need_phases=True)
