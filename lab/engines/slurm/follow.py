"""Jobs of a run followed to their end (logs as they grow, an outcome per step), or cancelled."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path

import msgspec

from lab.core.files import write_atomic
from lab.core.run import Run
from lab.core.step import Outcome, Status, Step, utc_now
from lab.core.stop import Stop
from lab.engines.base import OnLine
from lab.engines.output import LineSplitter
from lab.engines.slurm import queue
from lab.engines.slurm.records import FOLDER, Trace, read_jobs, read_trace, stop_flag, trace_path
from lab.engines.slurm.waits import Waits

POLL_S = 0.3
ASK_QUEUE_S = 3.0  # squeue takes the controller's time: one call for all jobs, at most this often
SETTLE_S = 15.0  # what a shared file system may take to show what a task wrote before it ended


def follow(
    run: Run,
    steps: Mapping[str, Step],
    jobs: Mapping[str, str],
    on_line: Callable[[Step], OnLine],
    stop: Stop,
    say: Callable[[str], None],
) -> Iterator[tuple[Step, Outcome]]:
    """Yield each step with its outcome as it ends. A first stop ends the steps gently, a second at once.

    say: called with why steps wait in the queue.
    """
    attempt = read_jobs(run.root).attempt
    waiting = {
        name: FollowedStep(run, step, jobs[name], attempt.get(name, 0), on_line(step))
        for name, step in steps.items()
    }
    asked_at, asked_to_end, killed = time.monotonic(), False, False
    waits = Waits(say, queue.node_states)
    names = {jobs[name]: name for name in steps}
    limits_s = {jobs[name]: limit for name, step in steps.items() if (limit := step.stall_timeout_s)}
    while waiting:
        trace_names = {path.name for path in (run.root / FOLDER).glob("*.json")}
        for name, followed in list(waiting.items()):
            outcome = followed.poll(trace_names)
            if outcome is not None:
                del waiting[name]
                yield followed.step, outcome
        living = [jobs[name] for name in waiting]
        if stop.is_set() and not asked_to_end:
            asked_to_end = True
            end_gently(run.root, living)
        if stop.at_once and not killed:
            killed = True
            queue.cancel(living)
        if waiting and time.monotonic() - asked_at > ASK_QUEUE_S:
            asked_at = time.monotonic()
            listed = queue.listed(living)
            for followed in waiting.values():
                job = listed.get(followed.job)
                followed.update_queue_state(job.state if job else None, cancelled=asked_to_end)
            if not asked_to_end:
                given_up = waits.look(listed, names, limits_s, asked_at)
                if given_up:  # a job that has begun meanwhile goes on
                    queue.cancel(list(given_up), waiting_only=True)
                for followed in waiting.values():
                    followed.given_up = given_up.get(followed.job, followed.given_up)
        if waiting:
            time.sleep(POLL_S)


class FollowedStep:
    """One step's job: its log as it grows, its outcome once there is one, and whether the queue has it."""

    def __init__(self, run: Run, step: Step, job: str, attempt: int, on_line: OnLine) -> None:
        self.run, self.step, self.job = run, step, job
        self._attempt = attempt
        self._on_line, self._splitter, self._offset = on_line, LineSplitter(), 0
        self._gone_since: float | None = None
        self._cancelled = False
        self.given_up = ""  # why its job was taken out of the queue

    def poll(self, trace_names: Set[str]) -> Outcome | None:
        """The outcome if the step has ended for good; None for a task that was preempted and is requeued.

        trace_names: of the traces that exist, so that no file of a waiting step is opened.
        """
        if trace_path(self.run.root, self.step.name).name in trace_names:
            self._read_log()
        elif not self._lost():
            return None
        paths = [trace_path(self.run.root, self.step.name, rank) for rank in range(self.step.nodes)]
        traces = [trace for path in paths if (trace := read_trace(path))]
        ended = [trace for trace in traces if trace.attempt == self._attempt and trace.outcome]
        if len(ended) == self.step.nodes or (ended and self._lost()):
            outcome = combined_outcome(self.run, self.step, ended)
            if outcome.status is Status.interrupted and not (self._cancelled or self._lost()):
                return None
            self._read_log(is_complete=True)
            return outcome
        if not self._lost():
            return None
        if self.given_up:
            reason = f"job {self.job} {self.given_up}"
            return Outcome(status=Status.interrupted, reason=reason, started_utc=utc_now())
        return lost_outcome(self.job, cancelled=self._cancelled)

    def update_queue_state(self, state: str | None, *, cancelled: bool) -> None:
        self._cancelled = cancelled
        if state in queue.LIVE:
            self._gone_since = None
            if state not in queue.WAITING:  # it began before it could be taken out of the queue
                self.given_up = ""
        elif self._gone_since is None:
            self._gone_since = time.monotonic()

    def _lost(self) -> bool:
        patience_s = 1.0 if self._cancelled or self.given_up else SETTLE_S
        return self._gone_since is not None and time.monotonic() - self._gone_since > patience_s

    def _read_log(self, *, is_complete: bool = False) -> None:
        try:
            with self.run.log(self.step).open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:  # a requeued job has begun it again
                    self._offset = 0
                file.seek(self._offset)
                chunk = file.read()
        except FileNotFoundError:
            return
        self._offset += len(chunk)
        for line in self._splitter.feed(chunk):
            self._on_line(line)
        if is_complete:
            for line in self._splitter.flush():
                self._on_line(line)


def lost_outcome(job: str, *, cancelled: bool) -> Outcome:
    """The job left the queue without an outcome: it was cancelled before it began, or its node died."""
    status, reason = Status.interrupted, f"job {job} was cancelled by the user"
    if not cancelled:
        end = queue.describe_end(job) or "Slurm no longer knows the job"
        status = Status.interrupted if "PREEMPTED" in end or "CANCELLED" in end else Status.failed
        status = Status.timeout if "TIMEOUT" in end else status
        reason = f"job {job} ended without an outcome: {end}; the job's own output is in {FOLDER}/"
    return Outcome(status=status, reason=reason, started_utc=utc_now())


def combined_outcome(run: Run, step: Step, traces: Sequence[Trace]) -> Outcome:
    """One outcome for all nodes: the first that is not ok, else the first node's if its files exist."""
    outcomes = [(trace, trace.outcome) for trace in traces if trace.outcome is not None]
    for trace, outcome in outcomes:
        if not outcome.ok:
            reason = f"{outcome.reason} (node {trace.node}, job {trace.job})"
            return msgspec.structs.replace(outcome, reason=reason)
    outcome = outcomes[0][1]
    if missing := run.missing(step):
        reason = f"exited with 0 but left no {', '.join(missing)}"
        return msgspec.structs.replace(outcome, status=Status.failed, reason=reason)
    return outcome


def living_jobs(root: Path) -> list[str]:
    """The jobs of a run that have not ended, that of its analysis among them."""
    jobs = read_jobs(root)
    return queue.living([*jobs.of_step.values(), jobs.analysis])


def cancel_run(root: Path) -> list[str]:
    """End every job of a run that still lives; -> the jobs."""
    if living := living_jobs(root):
        end_gently(root, living)
    return living


def end_gently(root: Path, jobs: Sequence[str]) -> None:
    """Waiting jobs never begin; running steps are asked to end, and may clean up."""
    write_atomic(stop_flag(root), b"")
    queue.cancel(jobs, waiting_only=True)
