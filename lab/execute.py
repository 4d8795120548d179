"""Run the steps of a run on an engine: in order, as many at a time as jobs and GPUs allow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol

from lab.core.run import Run, utc_now
from lab.core.step import Outcome, Status, Step
from lab.engines.base import Engine
from lab.engines.gpus import Gpu
from lab.engines.stop import Stop
from lab.errors import EngineError, GpuError, LabError, UsageError


class Watcher(Protocol):
    """Whoever wants to know what happens: the terminal, a room's own log."""

    def begin(self, step: Step) -> None: ...
    def line(self, step: Step, line: str) -> None: ...
    def end(self, step: Step, outcome: Outcome) -> None: ...


def execute(run: Run, engine: Engine, steps: Sequence[Step], gpus: Sequence[Gpu], *, jobs: int, watchers: Sequence[Watcher],
            stop: Stop) -> None:  # fmt: skip
    """Run `steps`; each outcome is on disk before the next step begins.

    A step that fails does not keep the others from running. A full disk does: StorageError after the running ones
    have ended.
    """
    for step in steps:
        if step.num_gpus > len(gpus):
            raise GpuError(
                f"step {step.name!r} needs {step.num_gpus} GPUs, {len(gpus)} were picked",
                fix="ask for fewer ranks, or give more GPUs with --gpus",
            )
    if jobs < 1:
        raise UsageError("--jobs must be at least 1")
    waiting, free = list(steps), list(gpus)
    running: dict[Future[None], list[Gpu]] = {}
    trouble: LabError | None = None
    with ThreadPoolExecutor(jobs, thread_name_prefix="lab-step") as pool:
        while waiting or running:
            while (
                waiting
                and len(running) < jobs
                and len(free) >= waiting[0].num_gpus
                and not stop.is_set()
                and not trouble
            ):
                step = waiting.pop(0)
                mine, free = free[: step.num_gpus], free[step.num_gpus :]
                running[pool.submit(_one, run, engine, step, mine, watchers, stop)] = mine
            if not running:
                break
            # A short wait keeps the main thread open to signals.
            done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in done:
                free = sorted(free + running.pop(future), key=lambda gpu: gpu.index)
                trouble = trouble or _error_of(future)
    if trouble:
        raise trouble


def _one(
    run: Run, engine: Engine, step: Step, gpus: Sequence[Gpu], watchers: Sequence[Watcher], stop: Stop
) -> None:
    if stop.wait(step.settle_s):
        return
    run.begin(step)
    for watcher in watchers:
        watcher.begin(step)
    outcome = _attempt(run, engine, step, gpus, watchers, stop)
    run.finish(step, outcome)
    for watcher in watchers:
        watcher.end(step, outcome)


def _attempt(
    run: Run, engine: Engine, step: Step, gpus: Sequence[Gpu], watchers: Sequence[Watcher], stop: Stop
) -> Outcome:
    def on_line(line: str) -> None:
        for watcher in watchers:
            watcher.line(step, line)

    started, began = utc_now(), time.monotonic()
    try:
        return engine.run(run, step, gpus, on_line=on_line, stop=stop)
    except EngineError as error:
        return Outcome(
            status=Status.failed,
            reason=str(error),
            started_utc=started,
            seconds=round(time.monotonic() - began, 3),
        )


def _error_of(future: Future[None]) -> LabError | None:
    error = future.exception()
    if error is None or isinstance(error, LabError):
        return error
    raise error
