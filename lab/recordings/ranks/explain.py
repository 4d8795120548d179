"""What the account means: findings ranked by time, what a repair gives, the path, and words for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np

from lab.core.words import plural, printable, ranks_text
from lab.recordings.ranks import path as paths
from lab.recordings.ranks import replay
from lab.recordings.ranks.account import Account
from lab.recordings.ranks.common import WHOLE, launched_in
from lab.recordings.ranks.hosts import host_waits
from lab.recordings.ranks.path import Piece
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
from lab.recordings.ranks.work import COMP, COPY
from lab.stats import robust
from lab.stats.intervals import overlap

# A cause binds if its repair shortens the step by so much of its size, and by so much in all.
BINDS_SHARE, BINDS_NS = 0.1, 200_000
# A step whose GPUs idle so much of it with work launched is not replayed from its launches.
MOST_IDLE = 0.1
MOST_HOSTS = 3  # slowest hosts repaired one after another
RECORDED, READY, READY_FREE = "as recorded", "all hosts ready", "all hosts ready, no contention"
FREE = "no contention"


@dataclass(frozen=True)
class Finding:
    """One cause on one rank. cost_ms: its size per step, over the others; saves_ms: what its repair gives.

    binding: the steps would be shorter without it; otherwise it is hidden behind another. saves_ms is None
    where no replay could tell.
    """

    rank: int
    cause: str
    binding: bool
    cost_ms: float
    steps: tuple[int, ...]
    saves_ms: float | None
    text: str


@dataclass(frozen=True)
class WhatIf:
    """One step replayed with something changed; change names it, length_ms is the whole step over ranks."""

    step: int
    change: str
    ranks: tuple[int, ...]
    length_ms: float
    recorded_ms: float


@dataclass(frozen=True)
class Explained:
    """One account with its replays. withheld says why a step has no what-if; steps are those that have.

    notes say where a replay rests on more than was recorded.
    """

    account: Account
    findings: tuple[Finding, ...]
    what_if: tuple[WhatIf, ...]
    path: dict[int, list[Piece]]
    host_ms: dict[tuple[int, int], float]
    withheld: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()

    def length_ms(self, change: str) -> float | None:
        """The median length over steps with this change, None where it is not known."""
        found = [one.length_ms for one in self.what_if if one.change == change]
        return robust.median(found) if found else None


def explain(accounts: Sequence[Account]) -> list[Explained]:
    """One per account; settings that launch the same operations share what is learnt about dependencies."""
    steps = [_replayable(account) for account in accounts]
    groups = replay.with_dependencies([found for found, _ in steps])
    return [
        _explained(account, group, notes)
        for account, group, (_, notes) in zip(accounts, groups, steps, strict=True)
    ]


def _replayable(account: Account) -> tuple[list[Step], list[str]]:
    """The steps that can be replayed, and why others cannot."""
    together = account.together
    if len(together.works) < 2:
        return [], ["one rank alone has nobody to wait for: nothing is replayed"]
    if (why := not_joined(account)) is not None:
        return [], [f"{why}: no what-if is given"]
    wrong = [one.rank for one in account.clocks if not one.plausible]
    if wrong:
        return [], [f"clocks contradict each other ({ranks_text(wrong)}): no what-if is given"]
    steps = replay.steps_of(together)
    left = [number for number in together.steps if number not in {one.number for one in steps}]
    notes = (
        [f"step {_join(left)}: not every rank recorded all launches, so no what-if is given"] if left else []
    )
    small = [one for one in steps if one.size <= replay.MOST_OPERATIONS]
    if len(small) < len(steps):
        notes.append(f"{plural(len(steps) - len(small), 'step')} too large to replay: no what-if is given")
    return small, notes


def _explained(account: Account, steps: Sequence[Step], notes: Sequence[str]) -> Explained:
    played: dict[int, tuple[Step, Outcome]] = {}
    withheld, learnt = list(notes), list[str]()
    for step in steps:
        step, outcome = _repeated(account, step, learnt)
        if outcome is None:
            withheld.append(f"step {step.number}: collectives are launched in contradicting orders")
        elif not replay.accepted(step, outcome):
            off = 100 * replay.error_share(step, outcome)
            withheld.append(
                f"step {step.number}: the replay of the unchanged recording is off by {off:.2f} % on a rank "
                "(0.2 % is accepted), so no what-if is given"
            )
        else:
            played[step.number] = (step, outcome)
    findings = _findings(account, played)
    return Explained(
        account=account,
        findings=tuple(findings),
        what_if=tuple(row for step, outcome in played.values() for row in _what_if(account, step, outcome)),
        path={number: _path(account, *one) for number, one in played.items()},
        host_ms={
            (step.number, rank): one.host_ns / 1e6 for step in steps for rank, one in step.ranks.items()
        },
        withheld=tuple(withheld),
        steps=tuple(step for step, _ in played.values()),
        notes=tuple(learnt),
    )


def _repeated(account: Account, step: Step, notes: list[str]) -> tuple[Step, Outcome | None]:
    """The step and its replay, by the first way that repeats the recording."""
    first: tuple[Step, Outcome | None] | None = None
    for variant, note in _variants(account, step):
        outcome = replay.play(variant)
        if outcome is not None and replay.accepted(variant, outcome):
            notes += [note] if note else []
            return variant, outcome
        first = first or (variant, outcome)
    return first or (step, None)


def _variants(account: Account, step: Step) -> Iterator[tuple[Step, str]]:
    """Ways to replay a step, each with what it rests on beside the recording, "" for nothing.

    As launched; with each start's own delay of some us; with mined waits; at last with all delays of starts
    as recorded, where the GPUs idled little with work launched.
    """
    yield step, ""
    yield replay.with_delays(step), ""
    both = replay.with_mined(step)
    if both is not None:
        note = (
            f"step {step.number} is replayed with waits of streams that the recording suggests, beside the "
            "recorded ones, which alone do not repeat it"
        )
        yield both, note
        yield replay.with_delays(both), note
    rows = [row for row in account.rows if row.step == step.number]
    idle = max(rows, key=lambda row: row.parts["launch_gap_ns"])
    if idle.parts["launch_gap_ns"] <= MOST_IDLE * idle.step_ns:
        why = "kernels found no room, or another program used the GPU"
        note = (
            f"step {step.number}: starts that nothing recorded explains ({why}) are kept as recorded; "
            f"what-if lengths may be off by {idle.parts['launch_gap_ns'] / 1e6:.1f} ms, for which a GPU idled"
        )
        yield replay.with_delays(both or step, np.inf), note


def _path(account: Account, step: Step, outcome: Outcome) -> list[Piece]:
    kinds = {}
    for rank, one in step.ranks.items():
        work = account.together.works[account.ranks.index(rank)]
        names = {COMP: paths.COMPUTE, COPY: paths.COPY}
        kinds[rank] = [names.get(kind, paths.TRANSFER) for kind in work.kind[one.rows].tolist()]
    return paths.critical_path(step, outcome, kinds)


def _what_if(account: Account, step: Step, outcome: Outcome) -> list[WhatIf]:
    recorded = step.recorded_ns / 1e6

    def row(change: str, changed: Step | None, ranks: Sequence[int] = ()) -> list[WhatIf]:
        length = replay.length_ms(changed, replay.play(changed)) if changed is not None else float("nan")
        known = not np.isnan(length)
        return [WhatIf(step.number, change, tuple(ranks), length, recorded)] if known else []

    rows = [WhatIf(step.number, RECORDED, (), replay.length_ms(step, outcome), recorded)]
    span = {rank: one.host_ns for rank, one in step.ranks.items()}
    slowest = sorted(span, key=lambda rank: -span[rank])[: min(MOST_HOSTS, len(span) - 1)]
    for count in range(1, len(slowest) + 1):
        fixed = slowest[:count]
        rows += row(f"host of rank {_join(fixed)} as the others'", replay.hosts_as_others(step, fixed), fixed)
    free = _contention(account, step)
    rows += row(FREE, replay.shorter(step, free))
    ready = replay.hosts_ready(step)
    rows += row(READY, ready)
    rows += row(READY_FREE, replay.shorter(ready, free))
    return rows


def _contention(account: Account, step: Step) -> dict[int, np.ndarray]:
    costs = dict(zip(account.ranks, account.contention, strict=True))
    return {rank: costs[rank].cost_ns[one.rows].astype(float) for rank, one in step.ranks.items()}


@dataclass(frozen=True)
class _Judged:
    """One excess of one step. saves_ns: what its repair alone gives, None where no replay tells.

    binding: the step would be shorter without it, or without it and the excesses of the ranks `mates`, which
    hold the step as long; then all of them together save together_ns. told: somebody could tell.
    """

    excess: Excess
    saves_ns: float | None
    binding: bool
    told: bool = True
    mates: tuple[int, ...] = ()
    together_ns: float = 0.0

    @property
    def group(self) -> tuple[int, str, bool]:
        return self.excess.rank, self.excess.cause, self.binding


def _findings(account: Account, played: dict[int, tuple[Step, Outcome]]) -> list[Finding]:
    judged = _judged(account, excesses_of(account), played)
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


def _judged(
    account: Account, excesses: Sequence[Excess], played: dict[int, tuple[Step, Outcome]]
) -> list[_Judged]:
    """Which excesses hold their steps up: each alone, or several that hold it up as long."""
    told = not_joined(account) is None
    found: list[_Judged] = []
    for number in account.together.steps:
        mine = [one for one in excesses if one.step == number]
        alone = []
        for one in mine:
            saves = _saves(played.get(number), [one])
            alone.append(_Judged(one, saves, _binds(account, one, saves), told))
        if number in played and len(mine) > 1 and not any(one.binding for one in alone):
            alone = _joint(played[number], alone)
        found += alone
    return found


def _joint(played: tuple[Step, Outcome], alone: Sequence[_Judged]) -> list[_Judged]:
    """The same, with those as binding that a repair of all of them needs: each alone saves nothing."""
    mine = [one.excess for one in alone]
    every = _saves(played, mine) or 0.0
    least = [max(BINDS_NS, BINDS_SHARE * one.ns) for one in mine]
    without = [_saves(played, [other for other in mine if other is not one]) or 0.0 for one in mine]
    needed = [every - rest > ns for rest, ns in zip(without, least, strict=True)]
    ranks = {one.rank for one, is_needed in zip(mine, needed, strict=True) if is_needed}
    return [
        replace(one, binding=True, mates=tuple(sorted(ranks)), together_ns=every) if is_needed else one
        for one, is_needed in zip(alone, needed, strict=True)
    ]


def _saves(played: tuple[Step, Outcome] | None, excesses: Sequence[Excess]) -> float | None:
    """By how many ns the step is shorter with all of these repaired."""
    if played is None:
        return None
    step, outcome = played
    late = [one.rank for one in excesses if one.cause == HOST_LATE]
    changed = replay.hosts_as_others(step, late) if late else step
    if changed is None:
        return None
    for one in excesses:
        if one.cause == ENTERED_LATE and one.rank not in late:
            changed = replay.entry_as_others(changed, one.rank)
    less: dict[int, np.ndarray] = {}
    for one in excesses:
        if one.less_ns is not None:
            less[one.rank] = less.get(one.rank, 0) + one.less_ns[step.ranks[one.rank].rows]
    changed = replay.shorter(changed, less)
    length = replay.length_ms(changed, replay.play(changed))
    return None if np.isnan(length) else max(0.0, 1e6 * (replay.length_ms(step, outcome) - length))


def not_joined(account: Account) -> str | None:
    """Why nobody can tell whom the others wait for; None where the ranks' collectives are paired."""
    pairs = account.together.pairs
    if len(account.ranks) < 2:
        return None
    loose = int((pairs.instances.collective_id < 0).sum()) if len(pairs.instances) else 0
    if loose:
        return f"{plural(loose, 'send or receive', 'sends or receives')} of more than two ranks not paired"
    if not account.num_calls or not (pairs.collectives.num_ranks > 1).any():
        return "no collective of one rank is paired with another's"
    return None


def _binds(account: Account, one: Excess, saves: float | None) -> bool:
    if saves is not None and (saves > max(BINDS_NS, BINDS_SHARE * one.ns) or not _hosts_follow(account, one)):
        return saves > max(BINDS_NS, BINDS_SHARE * one.ns)
    waited: dict[int, int] = {}
    for wait in account.waits:
        if (wait.step, wait.awaited) == (one.step, one.rank):
            waited[wait.rank] = waited.get(wait.rank, 0) + wait.ns
    others = [waited.get(rank, 0) for rank in account.ranks if rank != one.rank]
    return robust.median(others) > max(BINDS_NS, BINDS_SHARE * one.ns)


def _hosts_follow(account: Account, one: Excess) -> bool:
    """Whether the others' hosts block in mid-step for what no replay knows: their launches are no floor.

    Then who is waited for says more than what the replay saves.
    """
    blocked = []
    together = account.together
    for index, work in enumerate(together.works):
        window, rows = together.window(index, one.step), launched_in(together, index, one.step)
        if work.rank == one.rank or window is None or not len(rows):
            continue
        until = max(window[0], int(work.call_begin[rows].max()))
        span = np.array([[window[0], until]], dtype=np.int64)
        known_ns = sum(wait.end - wait.begin for wait in host_waits(work, rows))
        blocked.append(int(overlap(span, work.blocking_calls)[0]) - known_ns)
    return bool(blocked) and robust.median(blocked) > max(BINDS_NS, BINDS_SHARE * one.ns)


_WORDS = {
    HOST_LATE: "its host launches late",
    ENTERED_LATE: "it enters the recording late",
    MORE_WORK: "it has more work",
    SLOW_KERNELS: "its kernels are slower",
    SLOW_LINK: "it leaves collectives late",
    "copies": "it copies more",
}


def _with_text(account: Account, one: Finding, judged: Sequence[_Judged]) -> Finding:
    mine = [other for other in judged if other.group == (one.rank, one.cause, one.binding)]
    details = [other.excess.detail for other in mine if other.excess.detail]
    detail = f" ({details[0]})" if details else _host_words(account, one)
    where = f"in {'step' if len(one.steps) == 1 else 'steps'} {_join(one.steps)}"
    where = where if account.together.window_kind != WHOLE else "over the whole recording"
    size = f"+{one.cost_ms:.1f} ms over the others {where}"
    text = f"rank {one.rank}: {_what(account, one)}{detail}, {size}{_effect(one, mine, judged)}"
    return replace(one, text=text)


def _what(account: Account, one: Finding) -> str:
    first = account.together.steps[:1]
    if one.cause == ENTERED_LATE and [*one.steps] != first:
        return f"it enters {'step' if len(one.steps) == 1 else 'steps'} {_join(one.steps)} late"
    return _WORDS[one.cause]


def _effect(one: Finding, mine: Sequence[_Judged], judged: Sequence[_Judged]) -> str:
    """What its repair gives, or what hides it."""
    if not one.binding and not all(other.told for other in mine):
        return "; whether it holds the others up is not told"
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
        joint = f", ranks {_join(mates[0].mates)} together {joint_ms:.1f} ms"
    return f"; its repair alone saves {one.saves_ms:.1f} ms a step{joint}"


def _binding_ranks(judged: Sequence[_Judged], hidden: Finding) -> list[int]:
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


# What to try where every host is too slow, and where some are and the others keep up.
LIGHTER = "Try a lighter profile first (no shapes, no CPU ops), then larger shapes, compile or CUDA graphs."
DIFFERS = "The other hosts keep up, so look first for what differs there."


def bound_ranks(one: Explained) -> dict[int, float]:
    """Rank -> ms that its host needs per step, of the ranks whose hosts need longer than all GPUs."""
    ready = one.length_ms(READY)
    if ready is None:
        return {}
    ranks = sorted({rank for _, rank in one.host_ms})
    spans = {rank: robust.median([ms for (_, r), ms in one.host_ms.items() if r == rank]) for rank in ranks}
    return {rank: span for rank, span in spans.items() if span > 1.05 * ready}


def host_bound(one: Explained) -> str | None:
    """A sentence if the hosts, not the GPUs, set the pace: how many ranks, and by how much."""
    bound, ready = bound_ranks(one), one.length_ms(READY)
    if not bound:
        return None
    every = len(bound) == len({rank for _, rank in one.host_ms})
    if every:
        who = f"All {len(bound)} ranks are bound by their hosts"
    else:
        who = f"{ranks_in_words([*bound], 'is', 'are').capitalize()} bound by the host"
    low, high = f"{min(bound.values()):.0f}", f"{max(bound.values()):.0f}"
    span = low if low == high else f"{low}-{high}"
    work = f"{span} ms of launching per step for {ready:.1f} ms of GPU work"
    return f"{who}: {work}. {LIGHTER if every else DIFFERS}"


def ranks_in_words(ranks: Sequence[int], one: str, several: str) -> str:
    """`rank 3 is`, `ranks 3 and 5 are`."""
    return f"rank {_join(ranks)} {one}" if len(ranks) == 1 else f"ranks {_join(ranks)} {several}"


def _join(numbers: Sequence[int]) -> str:
    texts = [str(number) for number in numbers]
    if len(texts) > 6:
        return f"{', '.join(texts[:4])} and {len(texts) - 4} more"
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]])) if texts else ""
