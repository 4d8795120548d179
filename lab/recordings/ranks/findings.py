"""Findings of an account: one per rank and cause, binding ones first, each with its sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import mean

import numpy as np

from lab.core.words import plural, printable
from lab.recordings.ranks.account import Account
from lab.recordings.ranks.binding import Judged, judged_of
from lab.recordings.ranks.explained import Finding
from lab.recordings.ranks.labels import LAUNCH_LATE
from lab.recordings.ranks.replay import Outcome, Step
from lab.recordings.ranks.stragglers import (
    ENTERED_LATE,
    HOST_LATE,
    MISSING,
    MORE_WORK,
    SLOW_KERNELS,
    SLOW_LINK,
    excesses_of,
    missing_of,
)
from lab.recordings.ranks.words import is_whole, joined, ranks_in_words, steps_text
from lab.stats.intervals import overlap, subtract, union

_WORDS = {
    HOST_LATE: "its host launches late",
    ENTERED_LATE: "it enters the recording late",
    MORE_WORK: "it has more work",
    SLOW_KERNELS: "its kernels are slower",
    SLOW_LINK: "it leaves collectives late",
    "copies": "it copies more",
}


def findings_of(account: Account, played: dict[int, tuple[Step, Outcome]]) -> list[Finding]:
    judged = judged_of(account, excesses_of(account), played)
    groups: dict[tuple[int, str, bool], list[Judged]] = {}
    for cause in judged:
        groups.setdefault((cause.excess.rank, cause.excess.cause, cause.binding), []).append(cause)
    findings = [_finding(account, group, judged) for group in groups.values()]
    findings.sort(key=lambda finding: (not finding.binding, -(finding.saves_ms or 0), -finding.cost_ms))
    for rank, count, steps in missing_of(account):
        gone = "its recording is missing" if rank not in account.ranks else "it did not record them"
        text = f"rank {rank} lacks {plural(count, 'collective')} that others recorded: {gone}"
        findings.append(Finding(rank, MISSING, False, 0.0, steps, None, text))
    return findings


def _finding(account: Account, group: Sequence[Judged], judged: Sequence[Judged]) -> Finding:
    """One cause of one rank, from its excesses in all steps."""
    excess, binding = group[0].excess, group[0].binding
    steps = tuple(cause.excess.step for cause in group)
    saved_ns = [cause.saves_ns for cause in group if cause.saves_ns is not None]
    saves_ms = mean(saved_ns) / 1e6 if saved_ns else None
    cost_ms = mean(cause.excess.ns for cause in group) / 1e6
    cause_text = _WORDS[excess.cause]
    if excess.cause == ENTERED_LATE and [*steps] != account.together.steps[:1]:
        cause_text = f"it enters {steps_text(steps)} late"
    details = [cause.excess.detail for cause in group if cause.excess.detail]
    detail = f" ({details[0]})" if details else ""
    if excess.cause == HOST_LATE and not details:
        detail = _host_words(account, excess.rank, steps)
    scope = "over the whole recording" if is_whole(steps) else f"in {steps_text(steps)}"
    effect = _repair(group, saves_ms, steps) if binding else _cover(group, judged)
    text = f"rank {excess.rank}: {cause_text}{detail}, +{cost_ms:.1f} ms over the others {scope}{effect}"
    return Finding(excess.rank, excess.cause, binding, cost_ms, steps, saves_ms, text)


def _repair(group: Sequence[Judged], saves_ms: float | None, steps: Sequence[int]) -> str:
    """Say what its repair gives, alone and with the others that hold the step as long."""
    if saves_ms is None:
        return ""
    joint = [cause for cause in group if cause.mates]
    joint_ms = mean(cause.together_ns for cause in joint) / 1e6 if joint else 0.0
    joint_text = f", ranks {joined(joint[0].mates)} together {joint_ms:.1f} ms" if joint else ""
    per_step = "" if is_whole(steps) else " a step"
    return f"; its repair alone saves {saves_ms:.1f} ms{per_step}{joint_text}"


def _cover(group: Sequence[Judged], judged: Sequence[Judged]) -> str:
    """Say what work hides the finding."""
    if not all(cause.is_known for cause in group):
        return "; whether it holds the others up is unknown"
    rank, steps = group[0].excess.rank, {cause.excess.step for cause in group}
    binding = [cause.excess for cause in judged if cause.binding and cause.excess.step in steps]
    ranks = sorted({excess.rank for excess in binding} - {rank})
    until = f" until {ranks_in_words(ranks, 'is', 'are')} repaired" if ranks else ""
    return f"; hidden: it costs nothing{until}"


def _host_words(account: Account, rank: int, steps: Sequence[int]) -> str:
    """Describe what a late host did, by the calls and ops of the threads that launch, and before which op."""
    index = account.ranks.index(rank)
    work, segments = account.together.works[index], account.segments[index]
    step = account.together.windows[index][:, 0][segments.window]
    rows = np.flatnonzero((segments.label == LAUNCH_LATE) & np.isin(step, steps))
    if not len(rows):
        return ""
    late = np.stack([segments.begin[rows], segments.end[rows]], axis=1)
    blocked = union(work.blocking_calls)
    calls = subtract(work.calls, blocked)
    ops = subtract(subtract(work.host_ops, blocked), calls)
    covers = {"in a blocking call": blocked, "in launch calls": calls, "dispatching ops": ops}
    activity = {name: int(overlap(late, cover).sum()) for name, cover in covers.items()}
    total = int(segments.length[rows].sum())
    activity["outside any op (Python, data loading)"] = total - sum(activity.values())
    name = max(activity, key=activity.__getitem__)
    late_ns: Counter[str] = Counter()
    for row, ns in zip(segments.next_row[rows].tolist(), segments.length[rows].tolist(), strict=True):
        late_ns[work.keys[work.key[row]][0]] += ns
    op = late_ns.most_common(1)[0][0]
    op_text = f", most of it before {printable(op)}" if op else ""
    return f" ({100 * activity[name] / total:.0f} % of it {name}{op_text})"
