"""What the account means: findings ranked by time, what a repair gives, and the path over ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lab.core.words import plural, ranks_text
from lab.recordings.ranks import replay
from lab.recordings.ranks.account import Account
from lab.recordings.ranks.common import UNKNOWN
from lab.recordings.ranks.explained import (
    EVEN,
    FREE,
    READY,
    READY_FREE,
    RECORDED,
    Explained,
    Piece,
    WhatIf,
    joined,
    steps_text,
)
from lab.recordings.ranks.findings import findings_of, not_joined
from lab.recordings.ranks.pipeline import Pipeline, pipelines_of
from lab.recordings.ranks.replay import Outcome, Step
from lab.recordings.ranks.work import COMP, COPY

# A step whose GPUs idle so much of it with work launched is not replayed from its launches.
MOST_IDLE = 0.1
MOST_HOSTS = 3  # slowest hosts repaired one after another


def explain(accounts: Sequence[Account]) -> list[Explained]:
    """One per account; settings that launch the same operations share what is learnt about dependencies."""
    steps = [_replayable(account) for account in accounts]
    groups = replay.with_dependencies([found for found, _ in steps])
    return [
        _explained(account, group, notes)
        for account, group, (_, notes) in zip(accounts, groups, steps, strict=True)
    ]


def _explained(account: Account, steps: Sequence[Step], notes: Sequence[str]) -> Explained:
    played: dict[int, tuple[Step, Outcome]] = {}
    withheld, learnt = list(notes), list[str]()
    for step in steps:
        step, outcome = _repeated(account, step, learnt)
        if outcome is None:
            withheld.append(f"{steps_text([step.number])}: collectives are launched in contradicting orders")
        elif (error := replay.error_share(step, outcome)) > replay.ACCEPTED_SHARE:
            withheld.append(
                f"{steps_text([step.number])}: the replay of the unchanged recording is off by "
                f"{100 * error:.2f} % on a rank (0.2 % is accepted), so no what-if is given"
            )
        else:
            played[step.number] = (step, outcome)
    pipelines = pipelines_of(account)
    rows = [row for pair in played.values() for row in _what_if(account, *pair, pipelines, withheld)]
    if account.together.cut_step is not None:
        cut_text = steps_text([account.together.cut_step])
        learnt.append(f"{cut_text} begins with work from before the recording: findings leave it out")
    return Explained(
        account=account,
        findings=tuple(findings_of(account, played)),
        what_if=tuple(rows),
        path={number: _path_of(account, *step_and_outcome) for number, step_and_outcome in played.items()},
        host_ms={
            (step.number, rank): of_rank.host_ns / 1e6
            for step in steps
            for rank, of_rank in step.ranks.items()
        },
        withheld=tuple(withheld),
        steps=tuple(step for step, _ in played.values()),
        notes=tuple(learnt),
        pipelines=tuple(pipelines),
    )


def _replayable(account: Account) -> tuple[list[Step], list[str]]:
    """The steps that can be replayed, and why others cannot."""
    together = account.together
    if len(together.works) < 2:
        return [], ["one rank alone waits for no other: nothing is replayed"]
    if (reason := not_joined(account)) is not None:
        return [], [f"{reason}: no what-if is given"]
    wrong = [clock.rank for clock in account.clocks if not clock.plausible]
    if wrong:
        return [], [f"clocks contradict each other ({ranks_text(wrong)}): no what-if is given"]
    steps = replay.steps_of(together)
    left = [number for number in together.steps if number not in {step.number for step in steps}]
    notes = (
        [f"{steps_text(left)}: not every rank recorded all launches, so no what-if is given"] if left else []
    )
    small = [step for step in steps if step.size <= replay.MOST_OPERATIONS]
    if len(small) < len(steps):
        notes.append(f"{plural(len(steps) - len(small), 'step')} too large to replay: no what-if is given")
    return small, notes


def _repeated(account: Account, step: Step, notes: list[str]) -> tuple[Step, Outcome | None]:
    """The step and its replay, by the first way that repeats the recording."""
    # The variant that rests on least wins, not the best fit: more recorded times always fit better.
    fallback: tuple[Step, Outcome | None] | None = None
    for variant, note in _variants(account, step):
        outcome = replay.play(variant)
        if outcome is not None and replay.error_share(variant, outcome) <= replay.ACCEPTED_SHARE:
            notes += [note] if note else []
            return variant, outcome
        fallback = fallback or (variant, outcome)
    return fallback or (step, None)


def _variants(account: Account, step: Step) -> Iterator[tuple[Step, str]]:
    """Ways to replay a step, each with what it rests on beside the recording, "" for nothing.

    As launched; with each start's own delay of some us; with mined waits; at last with all delays of starts
    as recorded, where the GPUs idled little with work launched.
    """
    yield step, ""
    yield replay.with_delays(step), ""
    with_mined = replay.with_mined(step)
    if with_mined is not None:
        note = (
            f"{steps_text([step.number])} is replayed with waits of streams that the recording suggests, "
            "beside the recorded ones, which alone do not repeat it"
        )
        yield with_mined, note
        yield replay.with_delays(with_mined), note
    rows = [row for row in account.rows if row.step == step.number]
    idle = max(rows, key=lambda row: row.parts["launch_gap_ns"])
    if idle.parts["launch_gap_ns"] <= MOST_IDLE * idle.step_ns:
        reason = "kernels found no room, or another program used the GPU"
        note = (
            f"{steps_text([step.number])}: starts that nothing recorded explains ({reason}) are kept as "
            "recorded; what-if lengths may be off by "
            f"{idle.parts['launch_gap_ns'] / 1e6:.1f} ms, for which a GPU idled"
        )
        yield replay.with_delays(with_mined or step, np.inf), note


def _path_of(account: Account, step: Step, outcome: Outcome) -> list[Piece]:
    kinds = {}
    for rank, played in step.ranks.items():
        work = account.work(rank)
        kinds[rank] = [KINDS.get(kind, TRANSFER) for kind in work.kind[played.rows].tolist()]
    return critical_path(step, outcome, kinds)


def _what_if(
    account: Account, step: Step, outcome: Outcome, pipelines: Sequence[Pipeline], withheld: list[str]
) -> list[WhatIf]:
    """The lengths of a step with something changed; why one is not given goes to `withheld`."""
    recorded = step.recorded_ns / 1e6
    rows = [WhatIf(step.number, RECORDED, (), replay.length_ms(step, outcome), recorded)]

    def add(change: str, changed: Step | None, ranks: Sequence[int] = ()) -> None:
        length = replay.length_ms(changed) if changed is not None else float("nan")
        if length > rows[0].length_ms + replay.ACCEPTED_SHARE * recorded:
            withheld.append(
                f"{steps_text([step.number])}, {change}: the replay is longer than the recording, "
                "and no repair lengthens a step, so it is not given"
            )
        elif not np.isnan(length):
            rows.append(WhatIf(step.number, change, tuple(ranks), length, recorded))

    # The slowest hosts alone and together: repairing one of two equal ones gains nothing.
    span = {rank: played.host_ns for rank, played in step.ranks.items()}
    slowest = sorted(span, key=lambda rank: -span[rank])[: min(MOST_HOSTS, len(span) - 1)]
    for count in range(1, len(slowest) + 1):
        fixed = slowest[:count]
        add(f"host of rank {joined(fixed)} as the others'", replay.hosts_as_others(step, fixed), fixed)
    free, ready = _contention(account, step), replay.hosts_ready(step)
    add(FREE, replay.shorter(step, free))
    add(READY, ready)
    add(READY_FREE, replay.shorter(ready, free))
    # A mean over stages may be beyond what a split of layers can reach, so it is given only where it gains.
    even_ms = (
        replay.length_ms(replay.shorter(step, _uneven(account, step, pipelines))) if pipelines else np.inf
    )
    if even_ms <= rows[0].length_ms:
        rows.append(WhatIf(step.number, EVEN, (), even_ms, recorded))
    return rows


def _uneven(account: Account, step: Step, pipelines: Sequence[Pipeline]) -> dict[int, np.ndarray]:
    """What each stage's kernels take beyond the mean over the stages of their pipeline (n,), by rank."""
    beyond = {}
    for pipeline in pipelines:
        compute_ns = {b.rank: b.compute_ns for b in pipeline.bubbles if b.step == step.number}
        mean_ns = sum(compute_ns.values()) / len(compute_ns)
        for rank, own_ns in compute_ns.items():
            played, work = step.ranks[rank], account.work(rank)
            share = 1 - mean_ns / max(own_ns, 1)
            beyond[rank] = np.where(work.kind[played.rows] == COMP, played.dur * share, 0.0)
    return beyond


def _contention(account: Account, step: Step) -> dict[int, np.ndarray]:
    costs = dict(zip(account.ranks, account.contention, strict=True))
    return {rank: costs[rank].cost_ns[one.rows].astype(float) for rank, one in step.ranks.items()}


ENTERED, BEFORE, HOST_TIME, GAP = "entered late", "work of the step before", "host", "gap"
# Of the path over ranks: by kind of operation; all else moves data between ranks.
TRANSFER, KINDS = "transfer", {COMP: "compute", COPY: "copy"}


def critical_path(step: Step, outcome: Outcome, kinds: dict[int, list[str]]) -> list[Piece]:
    """Pieces in order of time; kinds[rank][place] is compute, transfer or copy for each operation."""
    rank = max(outcome.end, key=lambda played: max(outcome.end[played]))
    ends = outcome.end[rank]
    place = max(range(len(ends)), key=ends.__getitem__)
    origin = step.begin
    pieces: list[Piece] = []
    until = ends[place]
    while True:
        owner, kind, key = rank, kinds[rank][place], int(step.ranks[rank].key[place])
        if (rank, place) in outcome.latest_of:
            # Data moves from the last arrival on; before it counts that rank.
            kind, (rank, place) = TRANSFER, outcome.latest_of[rank, place]
        start_ns = outcome.start[rank][place]
        pieces.append(Piece(owner, kind, start_ns - origin, until - origin, key))
        by_host, previous = outcome.held_by[rank][place]
        if by_host and previous == UNKNOWN:
            break
        until = outcome.end[rank][previous]  # of a host that waited: what it waited for
        pieces.append(Piece(rank, HOST_TIME if by_host else GAP, until - origin, start_ns - origin))
        place = previous
    played = step.ranks[rank]
    pieces.append(Piece(rank, HOST_TIME, played.begin - origin, start_ns - origin))
    if played.begin > origin:
        pieces.append(Piece(rank, BEFORE if step.spills else ENTERED, 0.0, played.begin - origin))
    return [piece for piece in reversed(pieces) if piece.ns > 0]


def shares(path: list[Piece]) -> list[tuple[int, str, float]]:
    """(rank, kind, ns) summed, largest first."""
    sums: dict[tuple[int, str], float] = {}
    for piece in path:
        sums[piece.rank, piece.kind] = sums.get((piece.rank, piece.kind), 0.0) + piece.ns
    return sorted(((rank, kind, ns) for (rank, kind), ns in sums.items()), key=lambda share: -share[2])
