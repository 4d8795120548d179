"""Many traces in parallel: a `concurrent.futures.Executor`, in this process or over fresh ones."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from lab.errors import BLAS_THREADS, BadDataError, LabError

_J = TypeVar("_J")
_R = TypeVar("_R")


def map_traces(
    function: Callable[[_J], _R],
    jobs: Sequence[_J],
    *,
    workers: int,
    progress: Callable[[int, int, _J], None] | None = None,
) -> list[_R | LabError]:
    """`function(job)` for every job, in the order of the jobs; a job that failed yields a LabError.

    function and jobs must be picklable; workers=1 runs here, more run in that many fresh processes.
    progress is called with (jobs done, jobs in all, job) after each. A job that fails, or whose process is
    killed for memory, leaves the results of the others intact; only Ctrl-C ends them all.
    """
    results: dict[int, _R | LabError] = {}
    with _executor(min(workers, len(jobs))) as pool:
        try:
            waiting = {pool.submit(function, job): index for index, job in enumerate(jobs)}
            for done, future in enumerate(as_completed(waiting), start=1):
                index = waiting[future]
                outcome: _R | LabError = _outcome(function, jobs[index], future)
                results[index] = outcome
                if progress:
                    progress(done, len(jobs), jobs[index])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [results[index] for index in range(len(jobs))]


class _Here(Executor):
    """Runs each job at once, in this process."""

    def submit(self, function: Callable[..., _R], /, *args: Any, **named: Any) -> Future[_R]:
        future: Future[_R] = Future()
        try:
            future.set_result(function(*args, **named))
        except Exception as error:  # noqa: BLE001  an executor passes every error to the caller of result()
            future.set_exception(error)
        return future


def _executor(workers: int) -> Executor:
    # spawn: a fork of a process with threads (progress bars, numpy) can hang
    return _Here() if workers <= 1 else _fresh_processes(workers)


def _fresh_processes(workers: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_keep_one_blas_thread)


def _keep_one_blas_thread() -> None:
    os.environ.setdefault(BLAS_THREADS, "1")


def _outcome(function: Callable[[_J], _R], job: _J, future: Future[_R]) -> _R | LabError:
    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        return _alone(function, job)
    return future.result() if error is None else _as_lab_error(error, job)


def _alone(function: Callable[[_J], _R], job: _J) -> _R | LabError:
    """After a worker has died, run each remaining job in a process of its own, to know which one it was."""
    with _fresh_processes(1) as pool:
        future = pool.submit(function, job)
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            fix = "read it on a machine with more memory"
            return BadDataError(
                "the process that read it was killed, probably for lack of memory",
                where=_path_of(job),
                fix=fix,
            )
    return future.result() if error is None else _as_lab_error(error, job)


def _as_lab_error(error: BaseException, job: object) -> LabError:
    if isinstance(error, LabError):
        return error
    if isinstance(error, MemoryError):
        fix = "read it on a machine with more memory"
        return BadDataError("not enough memory to read it", where=_path_of(job), fix=fix)
    last = traceback.extract_tb(error.__traceback__)[-1:]
    at = f" in {last[0].name}, line {last[0].lineno}" if last else ""
    what = f"unexpected error: {type(error).__name__}: {error}{at}"
    return LabError(
        what, where=_path_of(job), fix="report this as a bug of lab, with the trace if you can share it"
    )


def _path_of(job: object) -> str:
    return str(getattr(job, "path", job))[:200]
