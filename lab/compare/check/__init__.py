"""`lab check`: processes of BASE against processes of HEAD, exact figures first, time last.

Half of the allowed false alarms is for the signatures (lab.compare.signatures), half for the whole
(lab.compare.whole). Looking again and again at the full level calls equal sides different. The later a look,
the more of the false alarms it has: of small changes only the last one knows enough, and large ones show at
any level. What a set of processes has in common (a state of the machine, their order) may pass for the
difference of the sides; a second set, run afterwards and judged by itself, does not share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from lab.compare.check.samples import Process, doubts, processes
from lab.compare.signatures import Signatures, judge_signatures
from lab.compare.signatures import sentences as signature_sentences
from lab.compare.whole import (
    ALARMS,
    LEAST_CHANGE,
    MEAN,
    SPAN,
    Total,
    carried_by_steps,
    judge_totals,
    total_words,
    values_of,
    whole_words,
)
from lab.compare.whole import outcome_of as whole_outcome
from lab.core.words import plural
from lab.errors import BadDataError
from lab.stats.gate import decide

SHARES = {3: 0.1, 6: 0.2, 12: 0.7}  # of the allowed false alarms, by the processes per side at a look
LOOKS = tuple(SHARES)
FOLDER = "second"  # beside base/ and head/; it has both again
LEVEL = 0.90  # of the interval that has to lie above the limit: one-sided 5 %, of things already proven
UNCONFIRMED = "unconfirmed"


class Verdict(msgspec.Struct, kw_only=True):
    """outcome: regression if one is proven; excluded if all are and nothing is in doubt; else undecided.

    exact: counts that changed; by_chance: those that may have by chance.
    steps: which steps carry the change of a mean. notes: what was not compared, though a reader may think so.
    second: what a second set of processes says of what is proven (`confirmed`); "" if there was none."""

    outcome: str
    max_slowdown: float
    metrics: list[Total]
    exact: list[str]
    by_chance: list[str] = []
    signatures: Signatures | None = None
    steps: list[str] = []
    doubts: list[str] = []
    notes: list[str] = []
    second: str = ""


def judge(
    base: Sequence[Process], head: Sequence[Process], max_slowdown: float, *, share: float = 1.0
) -> Verdict:
    """share: of the allowed false alarms that this look has, where a gate looks at growing numbers.

    Raises BadDataError where some processes are recordings and others step times.
    """
    if len({tuple(process.steps_ns) for process in (*base, *head)}) > 1:
        raise BadDataError(
            "some processes are recordings of a GPU and others step times: they have no metric in common",
            fix="write the same kind of file on both sides",
        )
    alarms = share * ALARMS / (2 if any(process.signatures_ns for process in (*base, *head)) else 1)
    times = [process.steps_ns for process in base], [process.steps_ns for process in head]
    totals = judge_totals(*times, max_slowdown, alarms=alarms)
    step_ns = [float(process.steps_ns[SPAN].mean()) for process in base if SPAN in process.steps_ns]
    signatures = judge_signatures(
        [process.signatures_ns for process in base],
        [process.signatures_ns for process in head],
        max_slowdown,
        alarms=alarms,
        step_ns=float(np.mean(step_ns)) if step_ns else 0.0,
    )
    reasons = doubts(base, head, max_slowdown)
    if signatures and not signatures.tested:
        reasons.append("no signature is in every process: other programs, or recorded with other options")
    certain, by_chance = exact(base, head, alarms=ALARMS * share)
    carried = [
        text
        for total in totals
        if total.statistic == MEAN and total.outcome != "excluded"
        if (text := carried_by_steps(*times, total.name))
    ]
    verdict = Verdict(
        outcome="",
        max_slowdown=max_slowdown,
        metrics=totals,
        exact=certain,
        by_chance=by_chance,
        signatures=signatures,
        steps=carried,
        doubts=reasons,
    )
    verdict.outcome = outcome_of(verdict)
    if verdict.outcome != "regression":
        _judge_periods(verdict, base, head, level=1 - ALARMS * share)
        verdict.outcome = outcome_of(verdict)
    return verdict


def _judge_periods(
    verdict: Verdict, base: Sequence[Process], head: Sequence[Process], *, level: float
) -> None:
    """Add the doubt that the time from a step's GPU work to the next one's is longer than allowed, if that is
    proven; else a note on what could not be seen. Too noisy to be a metric: a data loader shows in it alone.
    """
    base_ns, head_ns = ([process.period_ns for process in side] for side in (base, head))
    if min(*base_ns, *head_ns) <= 0:  # step times of their own, or one step
        return
    decision = decide(base_ns, head_ns, verdict.max_slowdown, level=level, ahead=False)
    subject = "the time from the beginning of a step's GPU work to that of the next"
    if decision.outcome == "regression":
        interval = f"{100 * level:.4g} % interval {decision.low:+.1%} to {decision.high:+.1%}"
        longer = f"{subject} is longer ({decision.change:+.1%}, {interval})"
        verdict.doubts.append(f"{longer}: what runs between steps (a data loader) is in no metric")
    elif decision.outcome == "undecided" and decision.low is not None:
        visible = f"only changes beyond {decision.detectable:.1%} could be seen"
        change = f"{subject} changed by {decision.change:+.1%}; {visible}"
        verdict.notes.append(f"{change}, and what runs between steps is in no metric")


def judge_folders(base: Path, head: Path, allowed: float) -> Verdict:
    """The verdict on recordings that are there already: one look, and no second set."""
    sides = processes(base), processes(head)
    verdict = judge(*sides, allowed)
    if verdict.outcome == "regression":
        # With two speeds at random one side is all fast and the other all slow in (1/4)^n of checks.
        chance = 0.25 ** min(map(len, sides))
        speeds = f"; a program with two speeds fails so by chance in {chance:.1%} of checks"
        verdict.notes.append(
            "proven by one set of processes, and no second one confirms it: -- COMMAND runs both"
            + (speeds if chance > ALARMS / 2 else "")
        )
    return verdict


def outcome_of(verdict: Verdict) -> str:
    """Outcome of a check by its totals, signatures and doubts."""
    outcomes = {whole_outcome(verdict.metrics)}
    if verdict.signatures:
        outcomes.add(verdict.signatures.outcome)
    if "regression" in outcomes:
        return "regression"
    return "excluded" if outcomes == {"excluded"} and not verdict.doubts else "undecided"


def confirmed(verdict: Verdict, base: Sequence[Process], head: Sequence[Process]) -> Verdict:
    """The verdict where only that is proven which these processes show as well. Changes `verdict`."""
    times = [process.steps_ns for process in base], [process.steps_ns for process in head]
    limit = max(verdict.max_slowdown, LEAST_CHANGE)
    for total in verdict.metrics:
        if total.outcome == "regression" and not _shows(
            *values_of(*times, total.name, total.statistic), limit
        ):
            total.outcome, total.further = UNCONFIRMED, None
    if signatures := verdict.signatures:
        for slower in signatures.slower:
            base_ns, head_ns = (
                [process.signatures_ns.get(slower.key, 0.0) for process in side] for side in (base, head)
            )
            if not _shows(base_ns, head_ns, slower.limit):
                slower.outcome = UNCONFIRMED
        signatures.unconfirmed += [slower for slower in signatures.slower if slower.outcome == UNCONFIRMED]
        signatures.slower = [slower for slower in signatures.slower if slower.outcome != UNCONFIRMED]
    verdict.outcome = outcome_of(verdict)
    n = plural(min(len(base), len(head)), "process", "processes")
    verdict.second = (
        f"A second set of {n} per side, judged by itself, agrees"
        if verdict.outcome == "regression"
        else f"The first set proves a slowdown, a second one of {n} per side does not: not confirmed"
    )
    return verdict


def _shows(base: Sequence[float], head: Sequence[float], limit: float) -> bool:
    """Whether these times alone lie above the limit. What a process lacks does not count as a time."""
    if min([*base, *head], default=0.0) <= 0:
        return False
    return decide(base, head, limit, level=LEVEL, ahead=False).outcome == "regression"


def exact(base: Sequence[Process], head: Sequence[Process], *, alarms: float) -> tuple[list[str], list[str]]:
    """Find counts that are equal within each side and differ between them: those too seldom for chance,
    and the others, with how often that is. One that takes either of two values by chance agrees so in 2^(1
    - n) of the checks with n processes in all."""
    sides = [[process.counts for process in side] for side in (base, head)]
    differing = []
    varied = 0  # counts that are not the same everywhere: as many could agree by chance
    for name in sorted({name for side in sides for counts in side for name in counts}):
        base_counts, head_counts = ({counts.get(name, 0.0) for counts in side} for side in sides)
        varied += len(base_counts | head_counts) > 1
        if len(base_counts) == len(head_counts) == 1 and base_counts != head_counts:
            differing.append(f"{name}: {base_counts.pop():g} -> {head_counts.pop():g} per step")
    chance = min(1.0, varied * 2.0 ** (1 - len(base) - len(head)))
    if chance <= alarms:
        return differing, []
    return [], [f"{text}, in all processes; by chance in up to {chance:.1%} of checks" for text in differing]


def sentences(verdict: Verdict) -> list[str]:
    """The verdict, why it is not clearer, then exact figures, signatures and times."""
    limit = f"{verdict.max_slowdown:.1%}"
    headlines = whole_words(verdict.metrics, verdict.max_slowdown)
    if verdict.outcome == "regression" and whole_outcome(verdict.metrics) != "regression":
        headlines = ["Parts of HEAD's step are slower: proven; of the step as a whole a slowdown is not."]
    elif verdict.outcome == "undecided" and whole_outcome(verdict.metrics) == "excluded":
        headlines = [f"Cannot tell whether HEAD is slower by more than {limit}: of the step it is excluded."]
    return [
        *headlines,
        *([f"{verdict.second}."] if verdict.second else []),
        *(f"{text[0].upper()}{text[1:]}." for text in verdict.steps),
        *(f"In doubt: {text}." for text in verdict.doubts),
        *(f"Note: {text}." for text in verdict.notes),
        *(f"Exact: {text}" for text in verdict.exact),
        *verdict.by_chance,
        *(signature_sentences(verdict.signatures) if verdict.signatures else []),
        *map(total_words, verdict.metrics),
    ]
