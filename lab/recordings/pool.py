"""Many traces in parallel: in this process, or in others that a killed one does not take along."""

from __future__ import annotations

import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from lab.core.words import plural
from lab.errors import BLAS_THREADS, BadDataError, LabError

if TYPE_CHECKING:  # a report of one trace needs no processes
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

_J = TypeVar("_J")
_R = TypeVar("_R")
_MORE_MEMORY = "read it on a machine with more memory"
_A_BUG = "report this as a bug of lab, with the trace if you can share it"


def map_traces(
    function: Callable[[_J], _R],
    jobs: Sequence[_J],
    *,
    workers: int,
    progress: Callable[[int, int, _J], None] | None = None,
) -> list[_R | LabError]:
    """`function(job)` for every job, in the order of the jobs; a job that failed yields a LabError.

    function and jobs must be picklable; workers=1 runs here, more run that many processes: forks of a
    server that has loaded the function's module once, where the system has such servers, else fresh ones.
    progress is called with (jobs done, jobs in all, job) after each. A job that fails, or whose process is
    killed for memory, leaves the results of the others intact; only Ctrl-C ends them all.
    """
    results: dict[int, _R | LabError] = {}
    workers = min(workers, len(jobs))
    in_this_process = ((index, _outcome(function, job)) for index, job in enumerate(jobs))
    outcomes = in_this_process if workers <= 1 else _elsewhere(function, jobs, workers)
    with closing(outcomes):
        for num_done, (index, outcome) in enumerate(outcomes, start=1):
            results[index] = outcome
            if progress:
                progress(num_done, len(jobs), jobs[index])
    return [results[index] for index in range(len(jobs))]


def raise_if_none_read(results: Sequence[object]) -> None:
    """Raises BadDataError, with the first one's reason, where every trace is an error."""
    errors = [result for result in results if isinstance(result, LabError)]
    if errors and len(errors) == len(results):
        problem = f"none of {plural(len(errors), 'trace')} can be read: {errors[0].problem}"
        raise BadDataError(problem, location=errors[0].location, fix=errors[0].fix)


def _elsewhere(
    function: Callable[[_J], _R], jobs: Sequence[_J], workers: int
) -> Generator[tuple[int, Any], None, None]:
    """(index of a job, its result or LabError), as they are done; each in a process of its own, so that it is
    known whose job a killed one had."""
    from multiprocessing.connection import wait

    context = _context_for(function)
    waiting = deque(range(len(jobs)))
    busy: dict[Any, tuple[BaseProcess, int]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                index = waiting.popleft()
                pipe, far_end = context.Pipe(duplex=False)
                arguments = (far_end, function, jobs[index], dict(os.environ))
                process = context.Process(target=_work, args=arguments, daemon=True)  # type: ignore[attr-defined]
                process.start()
                far_end.close()  # so that a killed process is an end of file
                busy[pipe] = process, index
            ready: list[Any] = wait(list(busy))
            for pipe in ready:
                process, index = busy[pipe]
                try:
                    outcome = pipe.recv()
                except (EOFError, ConnectionResetError):
                    process.join()
                    outcome = _killed(process.exitcode or 0, jobs[index])
                except Exception as error:  # noqa: BLE001  a result that cannot be unpickled is its job's error
                    outcome = _as_lab_error(error, jobs[index])
                process.join()
                del busy[pipe]
                yield index, outcome
    finally:
        for process, _ in busy.values():
            process.terminate()
            process.join()


def _context_for(function: Callable[..., Any]) -> BaseContext:
    import multiprocessing

    # Never a fork of this process: one with threads (progress bars, numpy) can hang.
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    _start_server(getattr(function, "func", function).__module__)
    return multiprocessing.get_context("forkserver")


def _start_server(module: str) -> None:
    """Have a server to fork from, with the module loaded; one that runs already stays as it is."""
    from multiprocessing import forkserver

    threads = os.environ.get(BLAS_THREADS)
    os.environ.setdefault(BLAS_THREADS, "1")  # so that numpy starts no threads in the server
    try:
        forkserver.set_forkserver_preload([module])
        forkserver.ensure_running()
    finally:
        if threads is None:
            del os.environ[BLAS_THREADS]


def _work(pipe: Connection, function: Callable[[Any], Any], job: object, environment: dict[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the business of the other end
    os.environ.clear()
    os.environ.update(environment)  # it may have changed since the server started
    os.environ.setdefault(BLAS_THREADS, "1")
    outcome = _outcome(function, job)
    try:
        pipe.send(outcome)
    except Exception as error:  # noqa: BLE001  a result that cannot be pickled is its job's error
        pipe.send(_as_lab_error(error, job))


def _outcome(function: Callable[[_J], _R], job: _J) -> _R | LabError:
    try:
        return function(job)
    except Exception as error:  # noqa: BLE001  every error is its job's
        return _as_lab_error(error, job)


def _killed(exit_code: int, job: object) -> LabError:
    if exit_code == -signal.SIGKILL:
        problem = "the process that read it was killed, probably for lack of memory"
        return BadDataError(problem, location=_path_of(job), fix=_MORE_MEMORY)
    ending = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
    return LabError(f"the process that read it {ending}", location=_path_of(job), fix=_A_BUG)


def _as_lab_error(error: BaseException, job: object) -> LabError:
    if isinstance(error, LabError):
        return error
    if isinstance(error, MemoryError):
        return BadDataError("not enough memory to read it", location=_path_of(job), fix=_MORE_MEMORY)
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    place_in_code = f" in {frames[0].name}, line {frames[0].lineno}" if frames else ""
    problem = f"unexpected error: {type(error).__name__}: {error}{place_in_code}"
    return LabError(problem, location=_path_of(job), fix=_A_BUG)


def _path_of(job: object) -> str:
    return str(getattr(job, "path", job))[:200]
