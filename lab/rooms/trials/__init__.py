"""Trials: how often a command fails, and which change makes it fail less.

Question: how often does it fail, what cures it, and is a cell's luck only luck?

Method: the same command runs many times in cells that differ in one thing each, shuffled within blocks that
hold every cell once. A trial passes, fails or is an error; an error is in no rate. Rates get exact intervals,
cells are compared with the baseline by Fisher's exact test and Holm's correction, or, where the run may stop
early, by a test that holds at every look. Time, GPU, node and speed are tested beside each claim.

Source: Clopper and Pearson (1934), Fisher (1935), Wald (1945), Robbins (1970), Holm (1979); see rates.

What it cannot tell: whether a setting took effect inside the command; what a failure is, beyond its words.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.core.plan import Findings, Silent
    from lab.core.run import Run
    from lab.core.step import Step


ROTATES_GPUS = True  # trials fall on all GPUs alike, also one at a time


def recognises(folder: Path) -> bool:
    """Whether `folder` holds records of bits; a run of trials, or of GPUs, says so in its manifest."""
    return _is_replay(folder)


def watcher(run: Run) -> Silent:
    """Each trial leaves its result when it ends."""
    from lab.core.plan import Silent

    return Silent()


def spare(run: Run) -> Callable[[Step], str] | None:
    """Why a trial need not run: those before it have decided its cell. Asked before each step."""
    from lab.rooms.trials.config import CONFIG, ended_rows, read_settings
    from lab.rooms.trials.progress import why_not

    if not (run.root / CONFIG).is_file():  # a replay, or a comparison of GPUs
        return None
    config = read_settings(run.root / CONFIG)
    if not (config.stop or config.until):
        return None
    return lambda step: why_not(config, str(step.labels["cell"]), ended_rows(run))


def analyse(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Results of the trials -> tables, figures, findings and report.html in `out`."""
    from lab.errors import needs

    with needs("analysis"):
        from lab.rooms.trials.gpus import CONFIG as OF_GPUS

        if run is not None and (folder / OF_GPUS).is_file():
            from lab.rooms.trials.gpus_page import report as report_gpus

            return report_gpus(out, run)
        if _is_replay(folder):
            from lab.rooms.trials.replay_page import report as report_replay

            return report_replay(folder, out, run)
        from lab.rooms.trials.findings import report
    assert run is not None  # no other folder is recognised
    return report(out, run)


def _is_replay(folder: Path) -> bool:
    from lab.rooms.trials.replay import CONFIG
    from lab.workload.recorder.format import OF_STEPS

    return (
        (folder / CONFIG).is_file() or any(folder.glob(OF_STEPS)) or any(folder.glob(f"steps/*/{OF_STEPS}"))
    )
