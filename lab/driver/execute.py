"""Run the steps of a run on an engine: in order, as many at a time as jobs and GPUs allow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from lab.core.gpu import Gpu
from lab.core.plan import Watcher
from lab.core.run import Run
from lab.core.step import Outcome, Status, Step, utc_now
from lab.core.stop import Stop
from lab.driver.comparable import checked
from lab.driver.report import read_report
from lab.engines.base import Engine, QueueEngine
from lab.errors import EngineError, EngineLost, GpuError, LabError
from lab.gpus.leases import hold
from lab.power.sampling import sampled


@dataclass(frozen=True)
class StepRunner:
    """All that running steps takes, besides the steps."""

    run: Run
    engine: Engine
    watchers: Sequence[Watcher]
    stop: Stop
    wait: bool = True  # for GPUs that another process holds
    spare: Callable[[Step], str] | None = None  # why a step is not needed any more; "": it is
    rotate: bool = False  # the GPU that was free for longest is next, and not the first one again

    def execute(self, steps: Sequence[Step], gpus: Sequence[Gpu], *, jobs: int) -> None:
        """Run `steps`; each outcome is on disk before the next step begins.

        A step that fails does not keep the others from running. A full disk, a lost engine or a GPU that
        another process holds does: the error is raised after the running steps have ended.
        """
        check_gpus(steps, gpus)
        if isinstance(self.engine, QueueEngine):
            self._through_queue(self.engine, steps, jobs)
            return
        waiting, free = list(steps), list(gpus)
        running: dict[Future[None], list[Gpu]] = {}
        trouble: LabError | None = None
        with ThreadPoolExecutor(jobs, thread_name_prefix="lab-step") as pool:
            while waiting or running:
                go_on = not self.stop.is_set() and trouble is None
                while go_on and waiting and len(running) < jobs:
                    picked = pick(waiting[0], free)  # in order: a step that waits holds up the others
                    if picked is None:
                        break
                    step = waiting.pop(0)
                    free = [gpu for gpu in free if gpu not in picked]
                    running[pool.submit(self._one, step, picked)] = picked
                if not running:
                    break
                # A short wait keeps the main thread open to signals.
                ended, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in ended:
                    free += running.pop(future)
                    if not self.rotate:
                        free.sort(key=lambda gpu: (gpu.index, gpu.instance or 0))
                    try:
                        future.result()
                    except LabError as error:
                        trouble = trouble or error
        if trouble:
            raise trouble

    def _through_queue(self, engine: QueueEngine, steps: Sequence[Step], jobs: int) -> None:
        """Hand all steps to an engine that schedules them itself; an unfinished one stays open."""
        if not steps or self.stop.is_set():
            return
        for step in steps:
            self.run.begin(step)
            for watcher in self.watchers:
                watcher.begin(step)
        for step, outcome in engine.run_all(self.run, steps, jobs=jobs, on_line=self.on_line, stop=self.stop):
            self.finish(step, outcome)

    def take_up(self) -> None:
        """Follow what outlived an earlier driver to its end."""
        for step in self.run.open_steps():
            outcome = self.engine.attach(self.run, step, on_line=self.on_line(step), stop=self.stop)
            if outcome is not None:
                self.finish(step, outcome)

    def _one(self, step: Step, gpus: Sequence[Gpu]) -> None:
        if self.spare and (reason := self.spare(step)):
            self.finish(step, Outcome(status=Status.skipped, reason=reason, started_utc=utc_now()))
            return
        with self._held(gpus) as is_held:
            if not is_held or self.stop.wait(step.settle_s):
                return
            self.run.begin(step)
            for watcher in self.watchers:
                watcher.begin(step)
            self.finish(step, self._attempt(step, gpus), gpus)

    def _held(self, gpus: Sequence[Gpu]) -> AbstractContextManager[bool]:
        """Hold the GPUs of a step against other processes of this machine."""
        if not self.engine.runs_here:
            return nullcontext(True)
        return hold(
            gpus,
            holder=f"run {self.run.manifest.id}",
            wait=self.wait,
            stop=self.stop,
            say=self.engine.say,
            in_containers=self.engine.gpus_in_use,
        )

    def finish(self, step: Step, outcome: Outcome, gpus: Sequence[Gpu] = ()) -> None:
        report = read_report(self.run, step, gpus)
        outcome = checked(self.run, step, outcome, report)
        self.run.finish(step, outcome, report)
        for difference in report.differences if report else ():
            self.engine.say(f"{step.name} {difference}")
        for watcher in self.watchers:
            watcher.end(step, outcome)

    def on_line(self, step: Step) -> Callable[[str], None]:
        def tell(line: str) -> None:
            for watcher in self.watchers:
                watcher.line(step, line)

        return tell

    def _attempt(self, step: Step, gpus: Sequence[Gpu]) -> Outcome:
        started, began = utc_now(), time.monotonic()
        sampled_gpus = gpus if self.engine.runs_here else ()
        try:
            with sampled(sampled_gpus, self.run.folder(step), step=f"{self.run.manifest.id}/{step.name}"):
                return self.engine.run(self.run, step, gpus, on_line=self.on_line(step), stop=self.stop)
        except EngineLost:
            raise  # the step may still run: its record stays open, so that --resume can take it up again
        except EngineError as error:
            seconds = round(time.monotonic() - began, 3)
            return Outcome(status=Status.failed, reason=str(error), started_utc=started, seconds=seconds)


def pick(step: Step, free: Sequence[Gpu]) -> list[Gpu] | None:
    """The GPUs that `step` gets now; None: it has to wait for one."""
    if step.gpu is None:
        return list(free[: step.num_gpus]) if len(free) >= step.num_gpus else None
    gpus = [gpu for gpu in free if step.gpu in (gpu.number, gpu.uuid)]
    return gpus[:1] or None


def check_gpus(steps: Sequence[Step], gpus: Sequence[Gpu]) -> None:
    """Raise GpuError for a step that these GPUs cannot run."""
    for step in steps:
        if step.gpu is not None and pick(step, gpus) is None:
            raise GpuError(
                f"step {step.name!r} needs GPU {step.gpu}, which was not picked",
                location=", ".join(f"{gpu.number} {gpu.uuid}" for gpu in gpus) or "no GPU",
                fix="name one of these, or widen --gpus",
            )
        if step.num_gpus > len(gpus):
            raise GpuError(
                f"step {step.name!r} needs {step.num_gpus} GPUs, {len(gpus)} were picked",
                fix="ask for fewer ranks, or give more GPUs with --gpus",
            )
        if step.num_gpus > 1 and (
            instances := [gpu for gpu in gpus if gpu.parent and gpu.vendor == "nvidia"]
        ):
            raise GpuError(
                f"step {step.name!r} needs {step.num_gpus} GPUs at once, and a process of CUDA uses one MIG "
                "instance at most, without NCCL",
                location=f"GPU {instances[0].number} {instances[0].name}",
                fix=f"one rank, on one instance: --ranks 1 --gpus {instances[0].number}; or whole GPUs",
            )
