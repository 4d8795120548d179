"""Why jobs wait: reported once, again at growing intervals or when the reason changes; and which end.

A busy queue is ordinary and reported late; a node that is down, a job that is held or a request that no node
fulfils is reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lab.core.words import plural, printable
from lab.engines.slurm.queue import LIVE, WAITING, Job, NodeState, array_of

SOON_S = 3.0  # a shorter wait is not worth a line
BUSY_S = 300.0  # from when a busy queue is worth a line
AGAIN_S, MOST_AGAIN_S = 600.0, 3600.0  # between two lines about one cause: doubles
HOPELESS_S = 30.0
FLAPS_S = 60.0  # a cause counts for so long after Slurm last named it
MOST_NAMED = 3
# Slurm's words for what passes by itself,
BUSY = {"None", "Priority", "Resources", "JobArrayTaskLimit", "BeginTime", "Cleaning", "Prolog"}
BUSY |= {"Dependency", "Reservation", "Licenses"}
# and for what only another request changes.
HOPELESS = re.compile(
    r"BadConstraints|DependencyNeverSatisfied|Partition(Node|Time)Limit|Invalid(Account|QOS)"
    r"|(Account|QOS)NotAllowed|(QOS|Assoc)Max\w*(PerJob|WallDuration)\w*"
)


class Cause(NamedTuple):
    """What a job waits for: Slurm's reason, the nodes that were asked for, the partition."""

    reason: str
    nodes: str
    partition: str

    @property
    def is_busy(self) -> bool:
        return self.reason in BUSY

    @property
    def is_hopeless(self) -> bool:
        return HOPELESS.fullmatch(self.reason) is not None


@dataclass
class _Report:
    """What was reported about one cause, and when the next line is due."""

    since_s: float
    due_s: float
    pause_s: float = AGAIN_S
    was_reported: bool = False
    last_seen_s: float = 0.0


@dataclass
class Waits:
    """Remembers what was reported. `nodes` gives the states of named nodes, else of a partition's."""

    say: Callable[[str], None]
    nodes: Callable[[str, str], Sequence[NodeState]]
    _reports: dict[Cause, _Report] = field(default_factory=dict)
    _since: dict[str, tuple[Cause, float]] = field(default_factory=dict)  # by job
    _blocked: dict[str, tuple[Cause, float]] = field(default_factory=dict)  # by job: when Slurm last named it

    def look(
        self, jobs: Mapping[str, Job], steps: Mapping[str, str], limits_s: Mapping[str, float], now_s: float
    ) -> dict[str, str]:
        """Report waits that are due; -> job -> why it is given up.

        steps: job -> step. limits_s: job -> how long it may wait for what is not there, a busy queue apart.
        """
        causes = self._causes(jobs, now_s)
        groups: dict[Cause, list[str]] = {}
        for job, cause in causes.items():
            groups.setdefault(cause, []).append(job)
            if job not in self._since or self._since[job][0] != cause:
                self._since[job] = cause, now_s
        self._since = {job: self._since[job] for job in causes}
        for cause in groups:
            due_s = now_s + (BUSY_S if cause.is_busy else SOON_S)
            self._reports.setdefault(cause, _Report(now_s, due_s)).last_seen_s = now_s
        for cause in [c for c, report in self._reports.items() if now_s - report.last_seen_s >= AGAIN_S]:
            del self._reports[cause]
        given_up = {}
        for cause, members in groups.items():
            if now_s >= self._reports[cause].due_s:
                ends = cause.is_hopeless or any(job in limits_s for job in members)
                self._report(cause, [steps[job] for job in members], now_s, advise=not ends)
            if any(jobs[job].reason == cause.reason for job in members):  # and not remembered from earlier
                given_up.update(self._given_up(cause, members, limits_s, now_s))
        return given_up

    def _causes(self, jobs: Mapping[str, Job], now_s: float) -> dict[str, Cause]:
        """What each job waits for.

        Slurm names what blocks an array for its first task alone, and not each time that its scheduler looks.
        """
        waiting = {name: job for name, job in jobs.items() if job.state in WAITING}
        causes = {name: Cause(job.reason, job.nodes, job.partition) for name, job in waiting.items()}
        self._blocked.update({name: (cause, now_s) for name, cause in causes.items() if not cause.is_busy})
        recent = {name: cause for name, (cause, seen_s) in self._blocked.items() if now_s - seen_s <= FLAPS_S}
        running = {array_of(name) for name, job in jobs.items() if job.state in LIVE - WAITING}
        of_array = {array_of(name): cause for name, cause in recent.items() if array_of(name) not in running}
        for name, cause in causes.items():
            if cause.reason == "JobArrayTaskLimit":
                causes[name] = of_array.get(array_of(name), cause)
            elif cause.is_busy:
                causes[name] = recent.get(name, cause)
        return causes

    def _report(self, cause: Cause, steps: Sequence[str], now_s: float, *, advise: bool) -> None:
        report = self._reports[cause]
        still = f"after {_span(now_s - report.since_s)} still " if report.was_reported else ""
        verb = "waits" if len(steps) == 1 else "wait"
        subject = f"{plural(len(steps), 'step')} {still}{verb} in the queue ({_shortened(steps)})"
        self.say(f"{subject}: {self._explain(cause)}")
        if advise and not cause.is_busy and not report.was_reported:
            self.say(
                "  --stall-timeout S ends such a wait; Ctrl-C ends the run, and --resume goes on with it"
            )
        report.due_s, report.was_reported = now_s + report.pause_s, True
        report.pause_s = min(MOST_AGAIN_S, 2 * report.pause_s)

    def _given_up(
        self, cause: Cause, jobs: Sequence[str], limits_s: Mapping[str, float], now_s: float
    ) -> dict[str, str]:
        if cause.is_busy:
            return {}
        limits_s = dict.fromkeys(jobs, HOPELESS_S) if cause.is_hopeless else limits_s
        waited_s = {job: now_s - self._since[job][1] for job in jobs}
        late = [job for job in jobs if waited_s[job] >= limits_s.get(job, float("inf"))]
        verdict = "no node will ever run it" if cause.is_hopeless else "longer than --stall-timeout allows"
        explanation = self._explain(cause) if late else ""
        return {
            job: f"waited in the queue for {_span(waited_s[job])}, {verdict}: {explanation}" for job in late
        }

    def _explain(self, cause: Cause) -> str:
        """The nodes that cannot be used and why, as Slurm has it; else Slurm's reason alone."""
        slurm = f"Slurm: {printable(cause.reason)[:120]}"
        if cause.is_busy:
            return slurm
        unusable = [node.text for node in self.nodes(cause.nodes, cause.partition) if not node.usable]
        return f"{_shortened(unusable)} ({slurm})" if unusable else slurm


def _shortened(texts: Sequence[str]) -> str:
    omitted = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return f"{', '.join(texts[:MOST_NAMED])}{omitted}"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
