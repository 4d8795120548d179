"""What the account means: findings ranked by time, what a repair gives, and the path."""

from __future__ import annotations

from collections.abc import Sequence

from lab.recordings.ranks import replay
from lab.recordings.ranks.account import Account
from lab.recordings.ranks.explained import Explained
from lab.recordings.ranks.findings import findings_of
from lab.recordings.ranks.replay import Outcome, Step
from lab.recordings.ranks.what_if import path_of, repeated, replayable, what_if
from lab.recordings.ranks.words import steps_text


def explain(accounts: Sequence[Account]) -> list[Explained]:
    """One per account; settings that launch the same operations share what is learnt about dependencies."""
    steps = [replayable(account) for account in accounts]
    groups = replay.with_dependencies([found for found, _ in steps])
    return [
        _explained(account, group, notes)
        for account, group, (_, notes) in zip(accounts, groups, steps, strict=True)
    ]


def _explained(account: Account, steps: Sequence[Step], notes: Sequence[str]) -> Explained:
    played: dict[int, tuple[Step, Outcome]] = {}
    withheld, learnt = list(notes), list[str]()
    for step in steps:
        step, outcome = repeated(account, step, learnt)
        if outcome is None:
            withheld.append(f"{steps_text([step.number])}: collectives are launched in contradicting orders")
        elif not replay.accepted(step, outcome):
            off = 100 * replay.error_share(step, outcome)
            withheld.append(
                f"{steps_text([step.number])}: the replay of the unchanged recording is off by {off:.2f} % "
                "on a rank (0.2 % is accepted), so no what-if is given"
            )
        else:
            played[step.number] = (step, outcome)
    findings = findings_of(account, played)
    return Explained(
        account=account,
        findings=tuple(findings),
        what_if=tuple(row for step, outcome in played.values() for row in what_if(account, step, outcome)),
        path={number: path_of(account, *step_and_outcome) for number, step_and_outcome in played.items()},
        host_ms={
            (step.number, rank): of_rank.host_ns / 1e6
            for step in steps
            for rank, of_rank in step.ranks.items()
        },
        withheld=tuple(withheld),
        steps=tuple(step for step, _ in played.values()),
        notes=tuple(learnt),
    )
