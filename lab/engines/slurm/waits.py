"""Why jobs wait: said once, again when the reason changes and at growing intervals, and when it is hopeless.

A queue that is busy is ordinary and said late; a node that is down, a job that is held or a request that no
node fulfils is said at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lab.core.words import plural, printable
from lab.engines.slurm.queue import LIVE, WAITING, Job, NodeState, array_of

SOON_S = 3.0  # a reason of a moment is none
BUSY_S = 300.0  # from when a busy queue is worth a line
AGAIN_S, MOST_AGAIN_S = 600.0, 3600.0  # between two lines of one reason: doubles
HOPELESS_S = 30.0
FLAPS_S = 60.0  # for so long a busy queue may be named in between
MOST_NAMED = 3
# Slurm's words for what passes by itself.
BUSY = {"None", "Priority", "Resources", "JobArrayTaskLimit", "BeginTime", "Cleaning", "Prolog"}
BUSY |= {"Dependency", "Reservation", "Licenses"}
# And for what no time changes, only another request.
HOPELESS = re.compile(
    r"BadConstraints|DependencyNeverSatisfied|Partition(Node|Time)Limit|Invalid(Account|QOS)"
    r"|(Account|QOS)NotAllowed|(QOS|Assoc)Max\w*(PerJob|WallDuration)\w*"
)
Key = tuple[str, str, str]  # Slurm's reason, the nodes that were asked for, the partition


@dataclass
class _Reason:
    """Jobs that wait for one thing, from when on, and when that is said next."""

    since: float
    next_at: float
    pause_s: float = AGAIN_S
    said: bool = False
    seen: float = 0.0


@dataclass
class Waits:
    """Remembers what was said. `nodes` gives the states of named nodes, else of a partition's."""

    say: Callable[[str], None]
    nodes: Callable[[str, str], Sequence[NodeState]]
    _reasons: dict[Key, _Reason] = field(default_factory=dict)
    _since: dict[str, tuple[Key, float]] = field(default_factory=dict)  # by job
    _blocked: dict[str, tuple[Key, float]] = field(default_factory=dict)  # by job: the last time it was seen

    def look(
        self, jobs: Mapping[str, Job], steps: Mapping[str, str], limits_s: Mapping[str, float], now: float
    ) -> dict[str, str]:
        """-> job -> why it is given up.

        steps: job -> step. limits_s: job -> how long it may wait for what is not there; a busy queue counts
        for nothing.
        """
        keys = self._keys(jobs, now)
        groups: dict[Key, list[str]] = {}
        for job, key in keys.items():
            groups.setdefault(key, []).append(job)
        before = self._since
        self._since = {
            job: before[job] if job in before and before[job][0] == key else (key, now)
            for job, key in keys.items()
        }
        for key in groups:
            self._reasons.setdefault(key, _begun(key, now)).seen = now
        self._reasons = {key: one for key, one in self._reasons.items() if now - one.seen < AGAIN_S}
        given_up = {}
        for key, members in groups.items():
            if now >= self._reasons[key].next_at:
                ends = HOPELESS.fullmatch(key[0]) or any(job in limits_s for job in members)
                self._tell(key, [steps[job] for job in members], now, hint=not ends and key[0] not in BUSY)
            if any(jobs[job].reason == key[0] for job in members):  # at this very look
                given_up.update(self._given_up(key, members, limits_s, now))
        return given_up

    def _keys(self, jobs: Mapping[str, Job], now: float) -> dict[str, Key]:
        """What each job waits for. Slurm names what is in its way only for the first of an array, and not
        each time that it looks.
        """
        found = {
            job: (one.reason, one.nodes, one.partition) for job, one in jobs.items() if one.state in WAITING
        }
        runs = {array_of(job) for job, one in jobs.items() if one.state not in WAITING and one.state in LIVE}
        self._blocked.update({job: (key, now) for job, key in found.items() if key[0] not in BUSY})
        recent = {job: key for job, (key, seen) in self._blocked.items() if now - seen <= FLAPS_S}
        first = {array_of(job): key for job, key in recent.items() if array_of(job) not in runs}
        for job, key in found.items():
            if key[0] == "JobArrayTaskLimit":
                found[job] = first.get(array_of(job), key)
            elif key[0] in BUSY:
                found[job] = recent.get(job, key)
        return found

    def _tell(self, key: Key, steps: Sequence[str], now: float, *, hint: bool) -> None:
        one = self._reasons[key]
        more = f" and {len(steps) - MOST_NAMED} more" if len(steps) > MOST_NAMED else ""
        still = f"after {_span(now - one.since)} still " if one.said else ""
        verb = "waits" if len(steps) == 1 else "wait"
        who = (
            f"{plural(len(steps), 'step')} {still}{verb} in the queue ({', '.join(steps[:MOST_NAMED])}{more})"
        )
        self.say(f"{who}: {self._why(key)}")
        if hint and not one.said:
            self.say(
                "  --stall-timeout S ends such a wait; Ctrl-C ends the run, and --resume goes on with it"
            )
        one.next_at, one.said = now + one.pause_s, True
        one.pause_s = min(MOST_AGAIN_S, 2 * one.pause_s)

    def _given_up(
        self, key: Key, jobs: Sequence[str], limits_s: Mapping[str, float], now: float
    ) -> dict[str, str]:
        if key[0] in BUSY:
            return {}
        never = HOPELESS.fullmatch(key[0]) is not None
        waited_s = {job: now - self._since[job][1] for job in jobs}
        late = [j for j in jobs if waited_s[j] >= (HOPELESS_S if never else limits_s.get(j, float("inf")))]
        if not late:
            return {}
        how = "no node will ever run it" if never else "longer than --stall-timeout allows"
        why = self._why(key)
        return {job: f"waited in the queue for {_span(waited_s[job])}, {how}: {why}" for job in late}

    def _why(self, key: Key) -> str:
        """The nodes that cannot be used and why, as Slurm has it; else Slurm's reason alone."""
        reason, nodes, partition = key
        slurm = f"Slurm: {printable(reason)[:120]}"
        if reason in BUSY:
            return slurm
        bad = [one for one in self.nodes(nodes, partition) if not one.usable]
        texts = [one.text for one in bad[:MOST_NAMED]]
        more = f" and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
        return f"{', '.join(texts)}{more} ({slurm})" if texts else slurm


def _begun(key: Key, now: float) -> _Reason:
    return _Reason(now, now + (BUSY_S if key[0] in BUSY else SOON_S))


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
