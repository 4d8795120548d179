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
    found = []
    for group in dict.fromkeys(one.group for one in judged):
        rank, cause, binding = group
        parts = [one for one in judged if one.group == group]
        known = [one.saves_ns for one in parts if one.saves_ns is not None]
        found.append(
            Finding(
                rank=rank,
                cause=cause,
                binding=binding,
                cost_ms=mean(one.excess.ns for one in parts) / 1e6,
                steps=tuple(one.excess.step for one in parts),
                saves_ms=mean(known) / 1e6 if known else None,
                text="",
            )
        )
    found = [_with_text(account, one, judged) for one in found]
    found.sort(key=lambda one: (not one.binding, -(one.saves_ms or 0), -one.cost_ms))
    for rank, count, steps in missing_of(account):
        gone = "its recording is missing" if rank not in account.ranks else "it did not record them"
        text = f"rank {rank} lacks {plural(count, 'collective')} that others recorded: {gone}"
        found.append(Finding(rank, MISSING, False, 0.0, steps, None, text))
    return found


def _with_text(account: Account, one: Finding, judged: Sequence[Judged]) -> Finding:
    mine = [other for other in judged if other.group == (one.rank, one.cause, one.binding)]
    details = [other.excess.detail for other in mine if other.excess.detail]
    detail = f" ({details[0]})" if details else _host_words(account, one)
    where = "over the whole recording" if is_whole(one.steps) else f"in {steps_text(one.steps)}"
    size = f"+{one.cost_ms:.1f} ms over the others {where}"
    text = f"rank {one.rank}: {_what(account, one)}{detail}, {size}{_effect(one, mine, judged)}"
    return replace(one, text=text)


def _what(account: Account, one: Finding) -> str:
    first = account.together.steps[:1]
    if one.cause == ENTERED_LATE and [*one.steps] != first:
        return f"it enters {steps_text(one.steps)} late"
    return _WORDS[one.cause]


def _effect(one: Finding, mine: Sequence[Judged], judged: Sequence[Judged]) -> str:
    """What its repair gives, or what hides it."""
    if not one.binding and not all(other.told for other in mine):
        return "; whether it holds the others up is unknown"
    if not one.binding:
        first = _binding_ranks(judged, one)
        until = f" until {ranks_in_words(first, 'is', 'are')} repaired" if first else ""
        return f"; hidden: it costs nothing{until}"
    if one.saves_ms is None:
        return ""
    mates = [other for other in mine if other.mates]
    joint = ""
    if mates:
        joint_ms = mean(other.together_ns for other in mates) / 1e6
        joint = f", ranks {joined(mates[0].mates)} together {joint_ms:.1f} ms"
    each = "" if is_whole(one.steps) else " a step"
    return f"; its repair alone saves {one.saves_ms:.1f} ms{each}{joint}"


def _binding_ranks(judged: Sequence[Judged], hidden: Finding) -> list[int]:
    steps = set(hidden.steps)
    return sorted(
        {
            one.excess.rank
            for one in judged
            if one.binding and one.excess.rank != hidden.rank and one.excess.step in steps
        }
    )


def _host_words(account: Account, one: Finding) -> str:
    """What a late host did, and before which op."""
    if one.cause != HOST_LATE:
        return ""
    mine = [host for host in account.hosts if host.rank == one.rank and host.step in one.steps]
    activity: dict[str, int] = {}
    ops: dict[str, int] = {}
    for host in mine:
        for name, ns in host.by_activity.items():
            activity[name] = activity.get(name, 0) + ns
        for name, ns in host.by_op:
            ops[name] = ops.get(name, 0) + ns
    total = sum(activity.values())
    if not total:
        return ""
    name, ns = max(activity.items(), key=lambda item: item[1])
    what = {
        "blocking call": "in a blocking call",
        "runtime call": "in launch calls",
        "op": "dispatching ops",
        "no op": "outside any op (Python, data loading)",
    }[name]
    op = max(ops, key=lambda key: ops[key]) if ops else ""
    before = f", most of it before {printable(op)}" if op else ""
    return f" ({100 * ns / total:.0f} % of it {what}{before})"
