"""Following the jobs of a run to their end: their logs as they grow, and an outcome for each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set

import msgspec

from lab.core.run import Run, utc_now
from lab.core.step import Outcome, Status, Step
from lab.core.stop import Stop
from lab.engines.lines import LineSplitter
from lab.engines.slurm import queue
from lab.engines.slurm.cancel import end_gently
from lab.engines.slurm.records import FOLDER, Trace, read_jobs, read_trace, trace_path
from lab.engines.slurm.waits import Waits

POLL_S = 0.3
ASK_QUEUE_S = 3.0  # squeue takes the controller's time: one call for all jobs, at most this often
SETTLE_S = 15.0  # what a shared file system may take to show what a task wrote before it ended


def follow(
    run: Run,
    steps: Mapping[str, Step],
    jobs: Mapping[str, str],
    on_line: Callable[[Step], Callable[[str], None]],
    stop: Stop,
    say: Callable[[str], None],
) -> Iterator[tuple[Step, Outcome]]:
    """Yield each step with its outcome as it ends. A first stop ends the steps gently, a second at once.

    say: told why steps wait in the queue.
    """
    attempt = read_jobs(run.root).attempt
    waiting = {
        name: FollowedStep(run, step, jobs[name], attempt.get(name, 0), on_line(step))
        for name, step in steps.items()
    }
    asked_at, asked_to_end, killed = time.monotonic(), False, False
    waits = Waits(say, queue.node_states)
    names = {one.job: name for name, one in waiting.items()}
    limits_s = {one.job: limit for one in waiting.values() if (limit := one.step.stall_timeout_s)}
    while waiting:
        begun = {path.name for path in (run.root / FOLDER).glob("*.json")}
        for name, one in list(waiting.items()):
            outcome = one.poll(begun)
            if outcome is not None:
                del waiting[name]
                yield one.step, outcome
        living = [one.job for one in waiting.values()]
        if stop.is_set() and not asked_to_end:
            asked_to_end = True
            end_gently(run.root, living)
        if stop.at_once and not killed:
            killed = True
            queue.cancel(living)
        if waiting and time.monotonic() - asked_at > ASK_QUEUE_S:
            asked_at = time.monotonic()
            found = queue.listed(living)
            for one in waiting.values():
                job = found.get(one.job)
                one.update_queue_state(job.state if job else None, cancelled=asked_to_end)
            if not asked_to_end:
                _give_up(waiting.values(), waits.look(found, names, limits_s, asked_at))
        if waiting:
            time.sleep(POLL_S)


def _give_up(steps: Collection[FollowedStep], why: Mapping[str, str]) -> None:
    """Cancel jobs that wait for what does not come; one that has begun meanwhile goes on."""
    if why:
        queue.cancel(list(why), waiting_only=True)
    for one in steps:
        one.given_up = why.get(one.job, one.given_up)


class FollowedStep:
    """One step's job: its log as it grows, its outcome once there is one, and whether the queue has it."""

    def __init__(self, run: Run, step: Step, job: str, attempt: int, on_line: Callable[[str], None]) -> None:
        self.run, self.step, self.job = run, step, job
        self._attempt = attempt
        self._on_line, self._splitter, self._offset = on_line, LineSplitter(), 0
        self._gone_since: float | None = None
        self._cancelled = False
        self.given_up = ""  # why its job was taken out of the queue

    def poll(self, begun: Set[str]) -> Outcome | None:
        """The outcome if the step has ended for good; None for a task that was preempted and is requeued.

        begun: the names of the traces that exist, so that the files of a waiting step need not be looked at.
        """
        if trace_path(self.run.root, self.step.name).name in begun:
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
            self._read_log(last=True)
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

    def _read_log(self, *, last: bool = False) -> None:
        try:
            with self.run.log(self.step).open("rb") as file:
                file.seek(self._offset)
                chunk = file.read()
        except FileNotFoundError:
            return
        self._offset += len(chunk)
        for line in self._splitter.feed(chunk):
            self._on_line(line)
        if last:
            for line in self._splitter.flush():
                self._on_line(line)


def lost_outcome(job: str, *, cancelled: bool) -> Outcome:
    """The job left the queue without an outcome: it was cancelled before it began, or its node died."""
    now = utc_now()
    if cancelled:
        reason = f"job {job} was cancelled by the user"
        return Outcome(status=Status.interrupted, reason=reason, started_utc=now)
    end = queue.describe_end(job) or "Slurm no longer knows the job"
    status = Status.interrupted if "PREEMPTED" in end or "CANCELLED" in end else Status.failed
    status = Status.timeout if "TIMEOUT" in end else status
    reason = f"job {job} ended without an outcome: {end}; the job's own output is in {FOLDER}/"
    return Outcome(status=status, reason=reason, started_utc=now)


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
