"""What the runs of a sweep prove for each class of collectives; what they do not is left at default."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lab.core.words import first_few, plural
from lab.recordings.ranks.costs import Class
from lab.recordings.views.timeline import GLOO_PREFIX
from lab.rooms.sweep.how import NAMES
from lab.rooms.sweep.knobs import Knobs, serves
from lab.rooms.sweep.names import short_name, size_text
from lab.rooms.sweep.tuner.file import Row, bounds_of
from lab.rooms.sweep.tuner.logs import Choice
from lab.rooms.sweep.tuner.observe import Observed, Ran, sizes_of
from lab.stats.effects import Best, best_of


class Set(NamedTuple):
    """What a row can set of a setting; 0 and "" are the library's own choice."""

    channels: int
    algorithm: str
    protocol: str

    def __str__(self) -> str:
        channels = plural(self.channels, "channel") if self.channels else ""
        how = " ".join(filter(None, (self.algorithm, self.protocol)))
        return ", ".join(filter(None, (channels, how))) or "the library's own choice"


@dataclass(frozen=True)
class Decision:
    """One class of collectives. row is what to set, None where it stays at default, for the reason.

    settings are those compared, in the order of the judgements: with all that the collectives cost other
    kernels (cost), and without what they cost while they only waited (least). looked is False where something
    that a judgement needs was not recorded, so that no answer is no all-clear.
    """

    name: Class
    settings: tuple[Knobs, ...]
    blocks: int
    cost: Best | None
    least: Best | None
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
    names = sizes_of(runs)
    bounds = {}
    for name in names:
        alike = [one.num_bytes for one in names if (one.kind, one.num_ranks) == (name.kind, name.num_ranks)]
        bounds[name] = bounds_of([size for size in alike if size > 0])
    decisions = tuple(_decide(name, runs, bounds[name].get(name.num_bytes)) for name in names)
    return Judged(decisions, *_threads(runs), tuple(_left_out(runs)))


def _left_out(runs: Sequence[Ran]) -> Iterator[str]:
    """Repeats that a setting lacks, and runs that could not be replayed: blocks with them do not count."""
    every = {ran.repeat for ran in runs}
    for key in sorted({ran.knobs for ran in runs}):
        lacking = sorted(every - {ran.repeat for ran in runs if ran.knobs == key})
        if lacking:
            repeats = first_few([str(repeat) for repeat in lacking])
            yield f"{short_name(*key)} has no repeat {repeats}, which others have: left out of the judgement"
    for ran in runs:
        if ran.ready_ms is None and not _is_gloo(ran):
            why = f" ({ran.withheld[0]})" if ran.withheld else ""
            name = f"repeat {ran.repeat} of {short_name(*ran.knobs)}"
            yield f"{name} could not be replayed{why}: left out of the judgement"


def _is_gloo(ran: Ran) -> bool:
    return bool(ran.classes) and all(one.cost.kernel.startswith(GLOO_PREFIX) for one in ran.classes.values())


def class_text(name: Class) -> str:
    """`allgather of 96 MiB over 8 ranks`."""
    kind = NAMES.get(name.kind, name.kind or "collective of unknown kind")
    return f"{kind} of {size_text(name.num_bytes)} over {plural(name.num_ranks, 'rank')}"


def _decide(name: Class, runs: Sequence[Ran], bounds: tuple[int, int] | None) -> Decision:
    seen = {(ran.knobs, ran.repeat): ran.classes[name] for ran in runs if name in ran.classes}
    played = {key: one for key, one in seen.items() if math.isfinite(one.cost.cost_ms + one.cost.least_ms)}
    settings, repeats = _complete(seen, played)

    def left(
        reason: str, *, looked: bool = True, cost: Best | None = None, least: Best | None = None
    ) -> Decision:
        return Decision(name, settings, len(repeats), cost, least, None, reason, looked)

    if all(one.cost.kernel.startswith(GLOO_PREFIX) for one in seen.values()):
        return left("gloo has neither channels nor threads")
    if name.kind not in NAMES:
        return left("a tuner's file has no such collective")
    if name.num_bytes == 0:
        return left("its calls are empty")
    if bounds is None:
        return left("its size was not recorded", looked=False)
    if not all(one.cost.blocks for one in seen.values()):
        return left("ranks may leave it early, so that waiting cannot be taken out", looked=False)
    sets = [_set_of(knobs, name.kind) for knobs in settings]
    if len(set(sets)) < 2:
        return left("nothing that a row can set for it was varied in every repeat")
    values = [
        np.array([[getattr(seen[key, repeat].cost, part) for key in settings] for repeat in repeats])
        for part in ("cost_ms", "least_ms")
    ]
    if not repeats:
        return left("runs could not be replayed, so that waiting cannot be taken out", looked=False)
    cost, least = best_of(values[0]), best_of(values[1])
    if len(repeats) < 2:
        first = f"{short_name(*settings[cost.lowest])} leads by {cost.lead:.3f} ms a step"
        return left(f"one run of each setting proves nothing ({first})", cost=cost, least=least)
    reason = _not_alone(sets, cost, least)
    if reason:
        return left(reason, cost=cost, least=least)
    best = sets[cost.lowest]
    if not any(best):
        return left(f"the library's own choice is best, {_why(sets, cost)}", cost=cost, least=least)
    mine = [seen[settings[at], repeat] for at in cost.candidates for repeat in repeats]
    reason, looked = _not_honoured(mine, best)
    choice = _choice(mine)
    if reason or choice is None:
        why = reason or _no_choice(mine)
        return left(why, looked=looked and choice is not None, cost=cost, least=least)
    hosts = {ran.hosts for ran in runs}
    nodes = hosts.pop() if len(hosts) == 1 else -1
    row = Row(
        NAMES[name.kind],
        *bounds,
        choice.algorithm,
        choice.protocol,
        best.channels or -1,
        nodes,
        name.num_ranks,
    )
    told = any(one.inferred for one in mine)
    return Decision(name, settings, len(repeats), cost, least, row, _why(sets, cost), inferred=told)


def _set_of(knobs: Knobs, kind: str) -> Set:
    """What a setting requests for collectives of this kind."""
    return Set(knobs.channel, knobs.algorithm if serves(knobs.algorithm, kind) else "", knobs.protocol)


def _complete(
    seen: Mapping[tuple[Knobs, int], Observed], played: Mapping[tuple[Knobs, int], Observed]
) -> tuple[tuple[Knobs, ...], list[int]]:
    """The settings that ran, and the repeats (blocks) in which every one of them could be replayed."""
    settings = sorted({key for key, _ in seen})
    repeats = sorted({repeat for _, repeat in seen})
    whole = [repeat for repeat in repeats if all((key, repeat) in played for key in settings)]
    return tuple(settings), whole


def _not_alone(sets: Sequence[Set], cost: Best, least: Best) -> str | None:
    """Why nothing that a row can set is proven to be best, None if one is."""
    for judged in (cost, least):
        several = sorted({sets[at] for at in judged.candidates})
        if len(several) > 1:
            lead = f"{_lead(sets, judged):.3f} ms a step"
            needed = f"{judged.needed:.3f} ms would be needed"
            return f"{_together(several)} cannot be told apart: the lead is {lead}, and {needed}"
    if sets[cost.lowest] != sets[least.lowest]:
        return (
            f"{sets[cost.lowest]} is best with all that waiting collectives cost GEMMs, {sets[least.lowest]} "
            "without: the recording does not tell which holds once nobody is late"
        )
    return None


def _together(several: Sequence[Set]) -> str:
    """`28 and 42 channels`, or whole settings where they differ in more than channels."""
    only_channels = len({one[1:] for one in several}) == 1 and all(one.channels for one in several)
    words = [str(one.channels) if only_channels and not any(one[1:]) else str(one) for one in several]
    text = " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    return f"{text} channels" if only_channels and not any(several[0][1:]) else text


def _lead(sets: Sequence[Set], judged: Best) -> float:
    """How far the first lies before the best that sets something else."""
    return min(_others(sets, judged)) - judged.means[judged.lowest]


def _others(sets: Sequence[Set], judged: Best) -> list[float]:
    """The means of the settings that set something else than the first."""
    return [mean for at, mean in enumerate(judged.means) if sets[at] != sets[judged.lowest]]


def _not_honoured(mine: Sequence[Observed], best: Set) -> tuple[str, bool]:
    """(why the runs did not use what was requested, whether the recording shows it)."""
    for word in ("algorithm", "protocol"):
        requested = getattr(best, word)
        got = sorted({getattr(one.choice, word) for one in mine if one.choice})
        if requested and got and got != [requested]:
            return f"{requested} was requested and {first_few(got)} used at this size", True
    used, channels = sorted({one.cost.grid for one in mine}), best.channels
    if channels == 0 or used == [channels]:
        return "", True
    if used[0] < 0:
        return "the trace has no grid, so the channels that it used are unknown", False
    found = first_few([str(count) for count in used])
    return f"{channels} channels were requested and {found} used at this size", True


def _choice(mine: Sequence[Observed]) -> Choice | None:
    """The algorithm and protocol that all of these runs used."""
    found = {(one.choice.algorithm, one.choice.protocol) if one.choice else None for one in mine}
    return Choice(*only) if len(found) == 1 and (only := found.pop()) else None


def _no_choice(mine: Sequence[Observed]) -> str:
    """Why no algorithm and protocol can be named."""
    known = sorted({f"{one.choice.algorithm} {one.choice.protocol}" for one in mine if one.choice})
    if len(known) > 1:
        return f"its runs used {' and '.join(known)}, so no algorithm and protocol can be named"
    return "algorithm and protocol are unknown (record with NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING)"


def _why(sets: Sequence[Set], cost: Best) -> str:
    means = _others(sets, cost)
    others = sorted({f"{mean:.2f}" for mean in (min(means), max(means))})
    what = "other channels" if len({one[1:] for one in sets}) == 1 else "other settings"
    return (
        f"{cost.means[cost.lowest]:.2f} ms a step, {what} {' to '.join(others)} ms; "
        f"lead {_lead(sets, cost):.3f} ms, {cost.needed:.3f} needed"
    )


def _threads(runs: Sequence[Ran]) -> tuple[int | None, str]:
    """The best threads per block by the step with nobody late; a tuner's file cannot set them."""
    seen = {(ran.knobs, ran.repeat): ran.ready_ms for ran in runs}
    settings = sorted({key for key, _ in seen})
    if len({knobs.threads for knobs in settings}) < 2:
        return None, "one number of threads was run"
    repeats = [
        repeat
        for repeat in sorted({repeat for _, repeat in seen})
        if all(seen.get((key, repeat)) is not None for key in settings)
    ]
    if len(repeats) < 2:
        return None, "too few complete repeats to tell threads apart"
    values = np.array([[seen[key, repeat] for key in settings] for repeat in repeats], dtype=float)
    judged = best_of(np.log(values))
    several = sorted({settings[at][0] for at in judged.candidates})
    best = short_name(*settings[judged.lowest])
    if len(several) > 1:
        return None, (
            f"{' and '.join(map(str, several))} threads cannot be told apart by the step with nobody late "
            f"(lead {_percent(judged.lead)}, {_percent(judged.needed)} needed)"
        )
    return several[0], f"{best} has the fastest step with nobody late, by {_percent(judged.lead)}"


def _percent(log_ratio: float) -> str:
    return "?" if math.isnan(log_ratio) else f"{100 * math.expm1(log_ratio):.1f} %"
