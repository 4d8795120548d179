"""Which causes hold their steps up: each alone, or several that hold a step as long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.core.words import plural
from lab.recordings.ranks import replay
from lab.recordings.ranks.account import Account
from lab.recordings.ranks.replay import Outcome, Step
from lab.recordings.ranks.stragglers import ENTERED_LATE, HOST_LATE, Excess
from lab.stats import robust

# A cause binds if its repair shortens the step by so much of its size, and by so much in all.
BINDS_SHARE, BINDS_NS = 0.1, 200_000
# So many sends and receives without a partner are those of a window that begins in running work.
MOST_LOOSE = 0.25


@dataclass(frozen=True)
class Judged:
    """One excess of one step. saves_ns: what its repair alone gives, None where no replay tells.

    binding: the step would be shorter without it, or without it and the excesses of the ranks `mates`, which
    hold the step as long; then all of them together save together_ns. is_known: calls tell who waits.
    """

    excess: Excess
    saves_ns: float | None
    binding: bool
    is_known: bool = True
    mates: tuple[int, ...] = ()
    together_ns: float = 0.0


def judged_of(
    account: Account, excesses: Sequence[Excess], played: dict[int, tuple[Step, Outcome]]
) -> list[Judged]:
    """Which excesses hold their steps up: each alone, or several that hold it up as long."""
    is_known = not_joined(account) is None
    judged: list[Judged] = []
    for number in account.together.steps:
        of_step = [excess for excess in excesses if excess.step == number]
        saves_ns = [_saves(played.get(number), [excess]) for excess in of_step]
        alone = [
            Judged(excess, saves, _binds(account, excess, saves), is_known)
            for excess, saves in zip(of_step, saves_ns, strict=True)
        ]
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
    waited_ns = dict.fromkeys(account.ranks, 0)
    for wait in account.waits:
        if (wait.step, wait.awaited) == (excess.step, excess.rank):
            waited_ns[wait.rank] += wait.ns
    del waited_ns[excess.rank]
    return robust.median([*waited_ns.values()]) > _threshold_ns(excess)
