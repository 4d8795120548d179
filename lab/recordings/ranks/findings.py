"""Findings of an account: which causes hold their steps up, and the sentence of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np

from lab.core.words import plural, printable
from lab.recordings.ranks import replay
from lab.recordings.ranks.account import LAUNCH_LATE, Account
from lab.recordings.ranks.explained import Finding, is_whole, joined, ranks_in_words, steps_text
from lab.recordings.ranks.replay import Outcome, Step
from lab.recordings.ranks.stragglers import (
    ENTERED_LATE,
    HOST_LATE,
    MISSING,
    MORE_WORK,
    SLOW_KERNELS,
    SLOW_LINK,
    Excess,
    excesses_of,
    missing_of,
)
from lab.stats import robust
from lab.stats.intervals import overlap, subtract, union

# A cause binds if its repair shortens the step by so much of its size, and by so much in all.
BINDS_SHARE, BINDS_NS = 0.1, 200_000
# So many sends and receives without a partner are those of a window that begins in running work.
MOST_LOOSE = 0.25


@dataclass(frozen=True)
class Judged:
    """One excess of one step. saves_ns: what its repair alone gives, None where no replay tells.

    binding: the step would be shorter without it, or without it and the excesses of the ranks `mates`, which
    hold the step as long; then all of them together save together_ns.
    """

    excess: Excess
    saves_ns: float | None
    binding: bool
    mates: tuple[int, ...] = ()
    together_ns: float = 0.0


def judged_of(
    account: Account, excesses: Sequence[Excess], played: dict[int, tuple[Step, Outcome]]
) -> list[Judged]:
    """Which excesses hold their steps up: each alone, or several that hold it up as long."""
    judged: list[Judged] = []
    for number in account.together.steps:
        of_step = [excess for excess in excesses if excess.step == number]
        saves_ns = [_saves(played.get(number), [excess]) for excess in of_step]
        alone = [
            Judged(excess, saves, _binds(account, excess, saves))
            for excess, saves in zip(of_step, saves_ns, strict=True)
        ]
        # Two late hosts hide each other: repairing either leaves the other in the way.
        if number in played and len(of_step) > 1 and not any(one.binding for one in alone):
            alone = _joint(played[number], alone)
        judged += alone
    return judged


def _joint(played: tuple[Step, Outcome], alone: Sequence[Judged]) -> list[Judged]:
    """Add causes that bind only together: a repair of all saves time, of each alone nothing."""
    excesses = [judged.excess for judged in alone]
    all_ns = _saves(played, excesses) or 0.0

    def is_needed(excess: Excess) -> bool:
        without_ns = _saves(played, [peer for peer in excesses if peer is not excess]) or 0.0
        return all_ns - without_ns > _threshold_ns(excess)

    needed = {id(excess): excess.rank for excess in excesses if is_needed(excess)}
    mates = tuple(sorted({*needed.values()}))
    return [
        replace(judged, binding=True, mates=mates, together_ns=all_ns)
        if id(judged.excess) in needed
        else judged
        for judged in alone
    ]


def _threshold_ns(excess: Excess) -> float:
    return max(BINDS_NS, BINDS_SHARE * excess.ns)


def _saves(played: tuple[Step, Outcome] | None, excesses: Sequence[Excess]) -> float | None:
    """Time in ns that the step saves with all of these repaired."""
    if played is None:
        return None
    step, outcome = played
    late = [excess.rank for excess in excesses if excess.cause == HOST_LATE]
    changed = replay.hosts_as_others(step, late) if late else step
    if changed is None:
        return None
    for excess in excesses:
        if excess.cause == ENTERED_LATE and excess.rank not in late:
            changed = replay.entry_as_others(changed, excess.rank)
    less: dict[int, np.ndarray] = {}
    for excess in excesses:
        if excess.less_ns is not None:
            less[excess.rank] = less.get(excess.rank, 0) + excess.less_ns[step.ranks[excess.rank].rows]
    changed = replay.shorter(changed, less)
    length = replay.length_ms(changed)
    # No repair lengthens a step: what a replay adds is its own error.
    return None if np.isnan(length) else max(0.0, 1e6 * (replay.length_ms(step, outcome) - length))


def not_joined(account: Account) -> str | None:
    """Why it cannot be told whom the others wait for; None where the ranks' collectives are paired."""
    pairs = account.together.pairs
    if len(account.ranks) < 2:
        return None
    rows = pairs.instances
    num_p2p = sum(len(call.legs) + int(call.loose.sum()) for call in account.together.calls)
    loose = sum(int(call.loose.sum()) for call in account.together.calls)
    if loose > MOST_LOOSE * max(num_p2p, 1):
        return f"{plural(loose, 'send or receive', 'sends or receives')} of {len(rows)} calls not paired"
    if not account.num_calls or not (pairs.collectives.num_ranks > 1).any():
        return "no collective of one rank is paired with another's"
    return None


def _binds(account: Account, excess: Excess, saves: float | None) -> bool:
    if saves is not None:
        return saves > _threshold_ns(excess)
    # Without a replay the others' waits for this rank tell; by their median, so that one neighbour in a
    # pipeline does not speak for all.
    waited_ns = dict.fromkeys(account.ranks, 0)
    for wait in account.waits:
        if (wait.step, wait.awaited) == (excess.step, excess.rank):
            waited_ns[wait.rank] += wait.ns
    del waited_ns[excess.rank]
    return robust.median([*waited_ns.values()]) > _threshold_ns(excess)


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
    effect = _repair(group, saves_ms, steps) if binding else _cover(account, group, judged)
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


def _cover(account: Account, group: Sequence[Judged], judged: Sequence[Judged]) -> str:
    """Say what work hides the finding."""
    if not_joined(account) is not None:
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
    # By time, not by count: the op before which the GPU idled longest is where to look first.
    late_ns: Counter[str] = Counter()
    for row, ns in zip(segments.next_row[rows].tolist(), segments.length[rows].tolist(), strict=True):
        late_ns[work.keys[work.key[row]][0]] += ns
    op = late_ns.most_common(1)[0][0]
    op_text = f", most of it before {printable(op)}" if op else ""
    return f" ({100 * activity[name] / total:.0f} % of it {name}{op_text})"
