"""Ending the jobs of a run, so that running steps can clean up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.core.files import write_atomic
from lab.engines.slurm import queue
from lab.engines.slurm.records import read_jobs, stop_flag


def cancel_run(root: Path) -> list[str]:
    """End every job of a run that still lives; -> the jobs."""
    jobs = list(read_jobs(root).of_step.values())
    living = [job for job, state in queue.states(jobs).items() if state in queue.LIVE]
    if living:
        end_gently(root, living)
    return living


def end_gently(root: Path, jobs: Sequence[str]) -> None:
    """Waiting jobs never begin; running steps are asked to end, and may clean up."""
    write_atomic(stop_flag(root), b"")
    queue.cancel(jobs, waiting_only=True)
