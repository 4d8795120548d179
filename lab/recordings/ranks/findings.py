"""Findings of an account: one per rank and cause, binding ones first, each with its sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from lab.core.words import plural, printable
from lab.recordings.ranks.account import Account
from lab.recordings.ranks.binding import Judged, judged_of
from lab.recordings.ranks.explained import Finding
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
    findings = []
    for group in dict.fromkeys(finding.group for finding in judged):
        rank, cause, binding = group
        parts = [finding for finding in judged if finding.group == group]
        saved_ns = [finding.saves_ns for finding in parts if finding.saves_ns is not None]
        findings.append(
            Finding(
                rank=rank,
                cause=cause,
                binding=binding,
                cost_ms=mean(finding.excess.ns for finding in parts) / 1e6,
                steps=tuple(finding.excess.step for finding in parts),
                saves_ms=mean(saved_ns) / 1e6 if saved_ns else None,
                text="",
            )
        )
    findings = [_with_text(account, finding, judged) for finding in findings]
    findings.sort(key=lambda finding: (not finding.binding, -(finding.saves_ms or 0), -finding.cost_ms))
    for rank, count, steps in missing_of(account):
        gone = "its recording is missing" if rank not in account.ranks else "it did not record them"
        text = f"rank {rank} lacks {plural(count, 'collective')} that others recorded: {gone}"
        findings.append(Finding(rank, MISSING, False, 0.0, steps, None, text))
    return findings


def _with_text(account: Account, finding: Finding, judged: Sequence[Judged]) -> Finding:
    of_group = [other for other in judged if other.group == (finding.rank, finding.cause, finding.binding)]
    details = [other.excess.detail for other in of_group if other.excess.detail]
    detail = f" ({details[0]})" if details else _host_words(account, finding)
    scope = "over the whole recording" if is_whole(finding.steps) else f"in {steps_text(finding.steps)}"
    size = f"+{finding.cost_ms:.1f} ms over the others {scope}"
    text = (
        f"rank {finding.rank}: {_what(account, finding)}{detail}, {size}{_effect(finding, of_group, judged)}"
    )
    return replace(finding, text=text)


def _what(account: Account, finding: Finding) -> str:
    first_step = account.together.steps[:1]
    if finding.cause == ENTERED_LATE and [*finding.steps] != first_step:
        return f"it enters {steps_text(finding.steps)} late"
    return _WORDS[finding.cause]


def _effect(finding: Finding, of_group: Sequence[Judged], judged: Sequence[Judged]) -> str:
    """What its repair gives, or what hides it."""
    if not finding.binding and not all(other.is_known for other in of_group):
        return "; whether it holds the others up is unknown"
    if not finding.binding:
        binding_ranks = _binding_ranks(judged, finding)
        until = f" until {ranks_in_words(binding_ranks, 'is', 'are')} repaired" if binding_ranks else ""
        return f"; hidden: it costs nothing{until}"
    if finding.saves_ms is None:
        return ""
    mates = [other for other in of_group if other.mates]
    joint = ""
    if mates:
        joint_ms = mean(other.together_ns for other in mates) / 1e6
        joint = f", ranks {joined(mates[0].mates)} together {joint_ms:.1f} ms"
    per_step = "" if is_whole(finding.steps) else " a step"
    return f"; its repair alone saves {finding.saves_ms:.1f} ms{per_step}{joint}"


def _binding_ranks(judged: Sequence[Judged], hidden: Finding) -> list[int]:
    steps = set(hidden.steps)
    return sorted(
        {
            cause.excess.rank
            for cause in judged
            if cause.binding and cause.excess.rank != hidden.rank and cause.excess.step in steps
        }
    )


def _host_words(account: Account, finding: Finding) -> str:
    """What a late host did, and before which op."""
    if finding.cause != HOST_LATE:
        return ""
    hosts = [host for host in account.hosts if host.rank == finding.rank and host.step in finding.steps]
    activity: dict[str, int] = {}
    ops: dict[str, int] = {}
    for host in hosts:
        for name, ns in host.by_activity.items():
            activity[name] = activity.get(name, 0) + ns
        for name, ns in host.by_op:
            ops[name] = ops.get(name, 0) + ns
    total = sum(activity.values())
    if not total:
        return ""
    name, ns = max(activity.items(), key=lambda item: item[1])
    activity_text = {
        "blocking call": "in a blocking call",
        "runtime call": "in launch calls",
        "op": "dispatching ops",
        "no op": "outside any op (Python, data loading)",
    }[name]
    op = max(ops, key=lambda key: ops[key]) if ops else ""
    op_text = f", most of it before {printable(op)}" if op else ""
    return f" ({100 * ns / total:.0f} % of it {activity_text}{op_text})"
