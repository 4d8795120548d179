"""`lab check`: processes of BASE against processes of HEAD, exact figures first, time last.

What is the same in all processes of a side and another in all of the other is exact, once that is too seldom
for chance: launches, waits, copies, the set of kernels. Then the GPU time of each signature
(check.signatures), then kernel time and wall time, judged by `lab.stats.gate`. Half of the allowed
false alarms is for the signatures, half for the times; within each class Holm's correction proves, and what
is excluded is excluded by itself, because all must be. Where A/A floors were measured (check.floors), they
are further processes of BASE, and tell with the others how much equal ones differ (lab.stats.gate).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from lab.compare.check.floors import Floors, as_builtins, by_signature, floor_of, unlike, words
from lab.compare.check.samples import Process, doubts
from lab.compare.check.signatures import Signatures, judge_signatures
from lab.compare.check.signatures import sentences as signature_words
from lab.core.words import plural
from lab.errors import BadDataError
from lab.stats.effects import holm
from lab.stats.gate import LEAST, LEVEL, decide
from lab.stats.means import variance_ratio

SPAN = "step time on the GPU"
LEAST_ROUNDS = 4  # of a process of each side, below which nothing is said of their order
BY_CHANCE = 0.001


class Metric(msgspec.Struct, kw_only=True):
    """One metric's decision; shares are of BASE. level: that of the interval from low to high, which holds
    for all metrics at once; floor: the change that 99 % of equal sides stay below here, by the A/A floors."""

    name: str
    level: float
    outcome: str
    n_base: int
    n_head: int
    change: float | None
    low: float | None
    high: float | None
    detectable: float | None
    more: int | None
    floor: float | None = None


class Verdict(msgspec.Struct, kw_only=True):
    """outcome: regression if one is proven; excluded if all are and nothing is in doubt; else undecided.

    exact: counts that changed; by_chance: those that may have by chance, in up to `chance` of equal checks.
    floors: where the A/A floors come from; None if there are none, and floors_words says why. notes: what was
    not compared, though a reader may think so. second: what a second set of processes says of what is proven
    (check.confirm); "" if there was none."""

    outcome: str
    max_slowdown: float
    metrics: list[Metric]
    exact: list[str]
    by_chance: list[str] = []
    chance: float = 0.0
    signatures: Signatures | None = None
    doubts: list[str] = []
    floors: dict[str, Any] | None = None
    floors_words: str = ""
    notes: list[str] = []
    second: str = ""


def judge(
    base: Sequence[Process],
    head: Sequence[Process],
    max_slowdown: float,
    *,
    share: float = 1.0,
    floors: Floors | None = None,
) -> Verdict:
    """share: of the allowed false alarms that this look has, where a gate looks at growing numbers.

    Raises BadDataError where some processes are recordings and others step times.
    """
    kinds = {tuple(one.times_ns) for one in (*base, *head)}
    if len(kinds) > 1:
        raise BadDataError(
            "some processes are recordings of a GPU and others step times: they have no metric in common",
            fix="write the same kind of file on both sides",
        )
    names = next(iter(kinds), ())
    about = "no A/A floors were measured on this machine"
    if floors and (other := unlike(floors, base)):
        floors, about = (
            None,
            f"the A/A floors are of other work, or of another state of this machine: {other}",
        )
    has_signatures = any(one.signatures_ns for one in (*base, *head))
    alarms = (1 - LEVEL) / (2 if has_signatures else 1)
    metrics = _metrics(names, base, head, max_slowdown, floors, alarms=alarms * share)
    signatures = judge_signatures(
        base,
        head,
        max_slowdown,
        alarms=alarms * share,
        step_ns=sum(one.times_ns.get(SPAN, 0.0) for one in base) / max(len(base), 1),
        kept=by_signature(floors),
    )
    doubted = doubts(base, head, max_slowdown)
    if signatures and not signatures.tested:
        doubted.append("no signature is in every process: other programs, or recorded with other options")
    sure, unsure, chance = exact(base, head, floors, alarms=(1 - LEVEL) * share)
    found = Verdict(
        outcome="",
        max_slowdown=max_slowdown,
        metrics=metrics,
        exact=sure,
        by_chance=unsure,
        chance=chance,
        signatures=signatures,
        doubts=doubted,
        floors=as_builtins(floors) if floors else None,
        floors_words=_floors_words(floors, about, min(len(base), len(head))),
    )
    found.outcome = outcome_of(found)
    if found.outcome != "regression":
        doubt, found.notes = _from_step_to_step(base, head, max_slowdown, level=1 - (1 - LEVEL) * share)
        found.doubts += doubt
        found.outcome = outcome_of(found)
    if found.outcome == "undecided":
        found.notes = [*_together(names, base, head), *found.notes]
    return found


def _from_step_to_step(
    base: Sequence[Process], head: Sequence[Process], allowed: float, *, level: float
) -> tuple[list[str], list[str]]:
    """The doubt that the time from a step's GPU work to the next one's is longer than allowed, if that is
    proven; else a note on what could not be seen. Too noisy to be a metric: a data loader shows in it alone.
    """
    a, b = ([one.period_ns for one in side] for side in (base, head))
    if not a or not b or min(*a, *b) <= 0:  # step times of their own, or one step
        return [], []
    found: dict[str, Any] = decide(a, b, allowed, level=level, ahead=False)
    what = "the time from the beginning of a step's GPU work to that of the next"
    change = f"{found['change']:+.1%}"
    if found["outcome"] == "regression":
        sure = f"{change}, {100 * level:.4g} % interval {found['low']:+.1%} to {found['high']:+.1%}"
        return [f"{what} is longer ({sure}): what runs between steps (a data loader) is in no metric"], []
    if found["outcome"] == "excluded" or found["detectable"] is None:
        return [], []
    seen = f"only changes beyond {found['detectable']:.1%} could be seen"
    return [], [f"{what} changed by {change}; {seen}, and what runs between steps is in no metric"]


def _metrics(
    names: Sequence[str],
    base: Sequence[Process],
    head: Sequence[Process],
    allowed: float,
    floors: Floors | None,
    *,
    alarms: float,
) -> list[Metric]:
    """Slower is proven of all metrics together (Holm), half of `alarms` for it and half for faster."""
    level = 1 - alarms / max(len(names), 1)
    found, p_slower = [], []
    for name in names:
        a, b = ([one.times_ns[name] for one in side] for side in (base, head))
        if min(*a, *b) <= 0:
            raise BadDataError(f"a process without any {name}", fix="see lab inspect on each recording")
        equal = floors.times_ns.get(name, []) if floors else []
        decision: dict[str, Any] = decide(a, b, allowed, level=level, equal=equal, excluding=1 - alarms)
        p_slower.append(decision.pop("p_slower"))
        del decision["p_faster"]
        found.append(Metric(name=name, level=level, floor=floor_of(equal, len(a), len(b)), **decision))
    for at in np.flatnonzero(holm(p_slower) <= alarms / 2).tolist():
        found[at].outcome, found[at].more = "regression", 0
    return found


def _together(names: Sequence[str], base: Sequence[Process], head: Sequence[Process]) -> list[str]:
    """What rose and fell on both sides together, round by round: the machine, and not the sides.

    The mean of a round scatters as much as half of its difference where processes are independent.
    """
    rounds = len(base)
    if len(head) != rounds or rounds < LEAST_ROUNDS:
        return []
    found = []
    for name in names:
        x, y = (np.log([one.times_ns[name] for one in side]) for side in (base, head))
        level, apart = (x + y) / 2, (y - x) / 2
        if level.var(ddof=1) > variance_ratio(1 - BY_CHANCE, rounds - 1, rounds - 1) * apart.var(ddof=1):
            low, high = np.expm1([level.min() - level.mean(), level.max() - level.mean()]).tolist()
            found.append(
                f"{name} rose and fell on both sides together, from {low:+.0%} to {high:+.0%} of its mean: "
                "the machine changed its speed (clocks, heat, other programs), which widens the intervals"
            )
    return found


def _floors_words(floors: Floors | None, about: str, n: int) -> str:
    """Where the floors come from, or what their absence means for n processes a side: of a program with two
    speeds (clocks, say) all of one side may have the one, and all of the other the other."""
    if floors:
        return f"A/A floors: {words(floors)}."
    chance = 0.25**n
    risk = f": a program with two speeds is called slower by chance in up to {chance:.1%} of checks"
    return f"{about[0].upper()}{about[1:]}{risk if n >= LEAST and chance > (1 - LEVEL) / 2 else ''}."


def outcome_of(found: Verdict) -> str:
    """That of its metrics, signatures and doubts."""
    outcomes = {one.outcome for one in found.metrics}
    if found.signatures:
        outcomes.add(found.signatures.outcome)
    if "regression" in outcomes:
        return "regression"
    return "excluded" if outcomes == {"excluded"} and not found.doubts else "undecided"


def exact(
    base: Sequence[Process], head: Sequence[Process], floors: Floors | None = None, *, alarms: float
) -> tuple[list[str], list[str], float]:
    """Counts that are equal in all processes of a side, and differ between the sides: those too seldom for
    chance, the others, and the share of equal checks in which one of these comes up at most.

    A count that takes either of two values by chance agrees so in 2^(1 - n) of the checks with n processes in
    all. The A/A floors' processes are further ones of BASE.
    """
    sides = [[one.counts for one in side] for side in (base, head)]
    differ = []
    varied = 0  # counts that are not the same everywhere: as many could agree by chance
    for name in sorted({name for side in sides for one in side for name in one}):
        a, b = ({one.get(name, 0.0) for one in side} for side in sides)
        varied += len(a | b) > 1
        if len(a) == len(b) == 1 and a != b:
            differ.append((name, a.pop(), b.pop()))
    sure: list[str] = []
    unsure: list[str] = []
    most = 0.0
    for name, before, now in differ:
        equal = len(base) + len(head) + _further(floors, name, before)
        chance = min(1.0, varied * 2.0 ** (1 - equal))
        (sure if chance <= alarms else unsure).append(f"{name}: {before:g} -> {now:g} per step")
        most = max(most, chance if chance > alarms else 0.0)
    return sure, unsure, most


def _further(floors: Floors | None, name: str, count: float) -> int:
    """The A/A floors' processes, if all have this count."""
    if floors is None or not floors.counts:
        return 0
    counts = floors.counts.get(name, [0.0])
    return floors.processes if set(counts) == {count} else 0


def sentences(found: Verdict) -> list[str]:
    """The verdict, why it is no clearer, then exact figures, signatures, times and the floors."""
    times = {one.outcome for one in found.metrics}
    limit = f"{found.max_slowdown:.1%}"
    heads = {
        "regression": f"Slower by more than {limit}: proven."
        if "regression" in times
        else "Parts of HEAD's step are slower: proven; of the step as a whole a slowdown is not.",
        "excluded": f"A slowdown beyond {limit} is excluded.",
        "undecided": f"Cannot tell whether HEAD is slower by more than {limit}.",
    }
    return [
        heads[found.outcome],
        *([f"{found.second}."] if found.second else []),
        *(f"In doubt: {one}." for one in found.doubts),
        *(f"Note: {one}." for one in found.notes),
        *(f"Exact: {one}" for one in found.exact),
        *(
            f"{one}, in all processes; by chance in up to {found.chance:.1%} of checks"
            for one in found.by_chance
        ),
        *(signature_words(found.signatures) if found.signatures else []),
        *(metric_words(one) for one in found.metrics),
        found.floors_words,
    ]


def metric_words(one: Metric) -> str:
    if one.low is None or one.high is None or one.detectable is None:
        more = plural(one.more or 0, "more process", "more processes")
        return f"{one.name}: {one.n_base} and {one.n_head} processes are too few; {more} a side at least."
    what = (
        f"{one.name}: {one.change:+.2%}, {100 * one.level:.4g} % interval {one.low:+.2%} to {one.high:+.2%}"
    )
    seen = f"smallest change that could be seen: {one.detectable:.1%}"
    seen += "" if one.floor is None else f"; A/A floor {one.floor:.1%}"
    proven = ", slower: proven" if one.outcome == "regression" else ", faster: proven" if one.high < 0 else ""
    proven = ", slower by the first set, not by the second" if one.outcome == "unconfirmed" else proven
    if one.outcome != "undecided":
        return f"{what}{proven} ({seen})."
    further = (
        "no number of processes up to 10,000"
        if one.more is None
        else plural(one.more, "more process", "more processes")
    )
    return f"{what} ({seen}); {further} a side would decide, if the change stays."
