"""What each class of collectives cost in each run of a sweep, and how it ran there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lab.recordings.ranks.costs import Class, Cost, costs_of
from lab.recordings.ranks.explained import READY
from lab.rooms.sweep.how import NAMES, by_block
from lab.rooms.sweep.knobs import Knobs
from lab.rooms.sweep.ranks.read import Setting
from lab.rooms.sweep.tuner.logs import Choice, read_logs


@dataclass(frozen=True)
class Observed:
    """One class of collectives in one run. choice is None where neither log nor block tell how it ran."""

    cost: Cost
    choice: Choice | None
    inferred: bool


@dataclass(frozen=True)
class Ran:
    """One run of a sweep. ready_ms: its step with no rank late, None where it could not be replayed."""

    knobs: Knobs
    repeat: int
    ready_ms: float | None
    hosts: int
    classes: dict[Class, Observed]
    withheld: tuple[str, ...]


def observe(settings: Iterable[Setting]) -> list[Ran]:
    """Every run of the sweep with what its collectives cost."""
    observed = []
    for setting in settings:
        knobs = setting.config.key.knobs
        costs = costs_of(setting.explained)
        calls = [(NAMES.get(name.kind, name.kind), name.num_bytes, name.num_ranks) for name in costs]
        log_choices = read_logs(setting.config.nccl_logs).of_calls(calls)
        classes = {}
        for name, cost in costs.items():
            choice = log_choices.choice(NAMES.get(name.kind, name.kind), name.num_bytes)
            inferred = choice or by_block(cost.kernel, cost.block, knobs.threads, log_choices)
            classes[name] = Observed(cost, inferred, choice is None)
        names = {work.host for work in setting.account.together.works}
        observed.append(
            Ran(
                knobs=knobs,
                repeat=setting.config.repeat,
                ready_ms=setting.explained.length_ms(READY),
                hosts=-1 if "" in names else len(names),
                classes=classes,
                withheld=setting.explained.withheld,
            )
        )
    return observed
