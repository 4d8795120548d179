"""What the runs of a sweep prove for each class of collectives; what they do not is left at default."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lab.core.words import first_few, plural
from lab.recordings.ranks.costs import Class, Cost, costs_of
from lab.recordings.ranks.explained import READY
from lab.recordings.views.launches import GLOO_PREFIX
from lab.rooms.sweep.effective import BLOCK, NAMES, SEVERAL, How, how_of, read_logs
from lab.rooms.sweep.knobs import Knobs, serves
from lab.rooms.sweep.ranks.read import Setting
from lab.rooms.sweep.tables import short_name, size_text
from lab.rooms.sweep.tuner.file import Row, bounds_of
from lab.stats.effects import Best, best_of


@dataclass(frozen=True)
class Observed:
    """One class of collectives in one run: what it cost, and how it ran."""

    cost: Cost
    choice: How


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
            kernel, block, threads = cost.kernel, cost.block, knobs.threads
            choice = how_of(
                log_choices, name.kind, name.num_bytes, kernel=kernel, block=block, threads=threads
            )
            classes[name] = Observed(cost, choice)
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


class Set(NamedTuple):
    """What a row can set of a setting; 0 and "" are the library's own choice."""

    channels: int
    algorithm: str
    protocol: str

    def __str__(self) -> str:
        channels = plural(self.channels, "channel") if self.channels else ""
        request = " ".join(filter(None, (self.algorithm, self.protocol)))
        return ", ".join(filter(None, (channels, request))) or "the library's own choice"


@dataclass(frozen=True)
class Decision:
    """One class of collectives. row is what to set, None where it stays at default, for the reason.

    cost is what its collectives and their effect on other kernels add to a step in each of settings. looked
    is False where something that a judgement needs was not recorded, so that no answer is not an all-clear.
    inferred: algorithm and protocol are told by the kernels' blocks.
    """

    name: Class
    settings: tuple[Knobs, ...]
    cost: Best | None
    row: Row | None
    reason: str
    looked: bool = True
    inferred: bool = False


@dataclass(frozen=True)
class Judged:
    """All classes, and the threads: threads is None where they stay at default, for thread_reason.

    left_out says which runs took no part in the judgement.
    """

    decisions: tuple[Decision, ...]
    threads: int | None
    thread_reason: str
    left_out: tuple[str, ...] = ()


def judge(runs: Sequence[Ran]) -> Judged:
    """The judgement over all runs of a sweep."""
    names = sorted({name for ran in runs for name in ran.classes})
    bounds = {}
    for name in names:
        alike = [c.num_bytes for c in names if (c.kind, c.num_ranks) == (name.kind, name.num_ranks)]
        bounds[name] = bounds_of([size for size in alike if size > 0])
    decisions = tuple(_decide(name, runs, bounds[name].get(name.num_bytes)) for name in names)
    return Judged(decisions, *_threads(runs), tuple(_left_out(runs)))


def _left_out(runs: Sequence[Ran]) -> Iterator[str]:
    """Repeats that a setting lacks, and runs that could not be replayed: blocks with them do not count."""
    all_repeats = {ran.repeat for ran in runs}
    for key in sorted({ran.knobs for ran in runs}):
        lacking = sorted(all_repeats - {ran.repeat for ran in runs if ran.knobs == key})
        if lacking:
            repeats = first_few([str(repeat) for repeat in lacking])
            yield f"{short_name(*key)} has no repeat {repeats}, which others have: left out of the judgement"
    for ran in runs:
        if ran.ready_ms is None and not _is_gloo(ran):
            reason_text = f" ({ran.withheld[0]})" if ran.withheld else ""
            name = f"repeat {ran.repeat} of {short_name(*ran.knobs)}"
            yield f"{name} could not be replayed{reason_text}: left out of the judgement"


def _is_gloo(ran: Ran) -> bool:
    kernels = [observed.cost.kernel for observed in ran.classes.values()]
    return bool(kernels) and all(kernel.startswith(GLOO_PREFIX) for kernel in kernels)


def class_text(name: Class) -> str:
    """`allgather of 96 MiB over 8 ranks`."""
    kind = NAMES.get(name.kind, name.kind or "collective of unknown kind")
    return f"{kind} of {size_text(name.num_bytes)} over {plural(name.num_ranks, 'rank')}"


def _decide(name: Class, runs: Sequence[Ran], bounds: tuple[int, int] | None) -> Decision:
    observed = {(ran.knobs, ran.repeat): ran.classes[name] for ran in runs if name in ran.classes}
    settings, repeats = _complete(
        {key: run.cost.cost_ms + run.cost.least_ms for key, run in observed.items()}
    )

    def left(reason: str, looked: bool = True, cost: Best | None = None) -> Decision:
        return Decision(name, settings, cost, None, reason, looked)

    if all(run.cost.kernel.startswith(GLOO_PREFIX) for run in observed.values()):
        return left("gloo has neither channels nor threads")
    if name.kind not in NAMES:
        return left("a tuner's file has no such collective")
    if name.num_bytes == 0:
        return left("its calls are empty")
    if bounds is None:
        return left("its size was not recorded", looked=False)
    if not all(run.cost.blocks for run in observed.values()):
        return left("ranks may leave it early, so that waiting cannot be taken out", looked=False)
    sets = [_set_of(knobs, name.kind) for knobs in settings]
    if len(set(sets)) < 2:
        return left("nothing that a row can set for it was varied in every repeat")
    if not repeats:
        return left("runs could not be replayed, so that waiting cannot be taken out", looked=False)
    # With all that the collectives cost other kernels, and without what they cost while they only waited.
    cost, least_cost = (
        best_of(
            np.array([[getattr(observed[key, repeat].cost, part) for key in settings] for repeat in repeats])
        )
        for part in ("cost_ms", "least_ms")
    )
    if len(repeats) < 2:
        leader = f"{short_name(*settings[cost.lowest])} leads by {cost.lead:.3f} ms a step"
        return left(f"one run of each setting proves nothing ({leader})", cost=cost)
    if reason := _not_alone(sets, cost, least_cost):
        return left(reason, cost=cost)
    best = sets[cost.lowest]
    if not any(best):
        return left(f"the library's own choice is best, {_why(sets, cost)}", cost=cost)
    # Every candidate has to have used what it requested, because any of them may be the best.
    best_runs = [observed[settings[candidate], repeat] for candidate in cost.candidates for repeat in repeats]
    reason, looked = _not_honoured(best_runs, best)
    choices = {run.choice[:2] for run in best_runs}
    ran_alike = len(choices) == 1 and all(word and SEVERAL not in word for word in best_runs[0].choice[:2])
    if reason or not ran_alike:
        return left(reason or _no_choice(choices), looked and ran_alike, cost)
    ((algorithm, protocol),) = choices
    hosts = {ran.hosts for ran in runs}
    row = Row(
        NAMES[name.kind],
        *bounds,
        algorithm,
        protocol,
        best.channels or -1,
        # Runs over different numbers of nodes give a rule for any number of them: -1.
        hosts.pop() if len(hosts) == 1 else -1,
        name.num_ranks,
    )
    inferred = any(run.choice.evidence == BLOCK for run in best_runs)
    return Decision(name, settings, cost, row, _why(sets, cost), inferred=inferred)


def _set_of(knobs: Knobs, kind: str) -> Set:
    """What a setting requests for collectives of this kind."""
    return Set(knobs.channel, knobs.algorithm if serves(knobs.algorithm, kind) else "", knobs.protocol)


def _complete(length_ms: Mapping[tuple[Knobs, int], float]) -> tuple[tuple[Knobs, ...], list[int]]:
    """The settings that ran, and the repeats (blocks) in which every one of them could be replayed."""
    replayed = {key for key, ms in length_ms.items() if math.isfinite(ms)}
    settings = sorted({knobs for knobs, _ in length_ms})
    repeats = sorted({repeat for _, repeat in length_ms})
    # Blocks are compared within themselves; an incomplete one would favour settings of a quiet hour.
    return tuple(settings), [
        repeat for repeat in repeats if all((knobs, repeat) in replayed for knobs in settings)
    ]


def _not_alone(sets: Sequence[Set], cost: Best, least_cost: Best) -> str | None:
    """Why nothing that a row can set is proven to be best, None if one is."""
    # Both ends of what waiting may cost must agree, or the answer rests on the unknown part.
    for judged in (cost, least_cost):
        several = sorted({sets[candidate] for candidate in judged.candidates})
        if len(several) > 1:
            lead = f"{_lead(sets, judged):.3f} ms a step"
            needed = f"{judged.needed:.3f} ms would be needed"
            names = " and ".join(map(str, several))
            return f"{names} cannot be told apart: the lead is {lead}, and {needed}"
    if sets[cost.lowest] != sets[least_cost.lowest]:
        return (
            f"{sets[cost.lowest]} is best with all that waiting collectives cost GEMMs, "
            f"{sets[least_cost.lowest]} "
            "without: the recording does not tell which holds once no rank is late"
        )
    return None


def _lead(sets: Sequence[Set], judged: Best) -> float:
    """How far the first lies before the best that sets something else."""
    return min(_others(sets, judged)) - judged.means[judged.lowest]


def _others(sets: Sequence[Set], judged: Best) -> list[float]:
    """The means of the settings that set something else than the first."""
    return [mean for index, mean in enumerate(judged.means) if sets[index] != sets[judged.lowest]]


def _not_honoured(candidates: Sequence[Observed], best: Set) -> tuple[str, bool]:
    """(why the runs did not use what was requested, whether the recording shows it)."""
    for word in ("algorithm", "protocol"):
        requested = getattr(best, word)
        got = sorted({getattr(candidate.choice, word) for candidate in candidates} - {""})
        if requested and got and got != [requested]:
            return f"{requested} was requested and {first_few(got)} used at this size", True
    used, channels = sorted({candidate.cost.grid for candidate in candidates}), best.channels
    if channels == 0 or used == [channels]:
        return "", True
    if used[0] < 0:
        return "the trace has no grid, so the channels that it used are unknown", False
    counts = first_few([str(count) for count in used])
    return f"{channels} channels were requested and {counts} used at this size", True


def _no_choice(choices: Collection[tuple[str, ...]]) -> str:
    """Why no algorithm and protocol can be named."""
    texts = sorted(" ".join(choice) for choice in choices if all(choice))
    if texts:
        return f"its runs used {' and '.join(texts)}, so no algorithm and protocol can be named"
    return "algorithm and protocol are unknown (record with NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING)"


def _why(sets: Sequence[Set], cost: Best) -> str:
    means = _others(sets, cost)
    extremes = sorted({f"{mean:.2f}" for mean in (min(means), max(means))})
    alternatives = "other channels" if len({setting[1:] for setting in sets}) == 1 else "other settings"
    return (
        f"{cost.means[cost.lowest]:.2f} ms a step, {alternatives} {' to '.join(extremes)} ms; "
        f"lead {_lead(sets, cost):.3f} ms, {cost.needed:.3f} needed"
    )


def _threads(runs: Sequence[Ran]) -> tuple[int | None, str]:
    """The best threads per block by the step with no rank late; a tuner's file cannot set them."""
    ready_ms = {(ran.knobs, ran.repeat): math.nan if ran.ready_ms is None else ran.ready_ms for ran in runs}
    settings, repeats = _complete(ready_ms)
    if len({knobs.threads for knobs in settings}) < 2:
        return None, "one number of threads was run"
    if len(repeats) < 2:
        return None, "too few complete repeats to tell threads apart"
    judged = best_of(np.log([[ready_ms[key, repeat] for key in settings] for repeat in repeats]))
    several = sorted({settings[candidate][0] for candidate in judged.candidates})
    best = short_name(*settings[judged.lowest])
    if len(several) > 1:
        return None, (
            f"{' and '.join(map(str, several))} threads cannot be told apart by the step with no rank late "
            f"(lead {_percent(judged.lead)}, {_percent(judged.needed)} needed)"
        )
    return several[0], f"{best} has the fastest step with no rank late, by {_percent(judged.lead)}"


def _percent(log_ratio: float) -> str:
    return "?" if math.isnan(log_ratio) else f"{100 * math.expm1(log_ratio):.1f} %"
