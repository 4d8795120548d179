"""The second, independent set of processes: a slowdown that one set proved has to show in another one, too.

What one set has in common (a state of the machine while it ran, the order of its processes) may pass for the
difference of the sides. A second set, run afterwards and judged by itself, does not share it. It ends at the
first planned look that shows all of what was proven, with as many processes as the first set has at most.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.compare.check.floors import Floors, by_signature
from lab.compare.check.gate import Metric, Verdict, outcome_of
from lab.compare.check.samples import Process
from lab.compare.check.signatures import Slower
from lab.compare.side import Key
from lab.core.words import plural
from lab.stats.gate import decide

FOLDER = "second"  # beside base/ and head/; it has both again
LEVEL = 0.90  # of the interval that has to lie above the limit: one-sided 5 %, of things already proven
UNCONFIRMED = "unconfirmed"


def shows_all(
    found: Verdict, base: Sequence[Process], head: Sequence[Process], floors: Floors | None, share: float
) -> bool:
    """Whether these processes show everything that is proven. share: of the second set's false alarms."""
    return not any(_not_shown(found, base, head, floors, share))


def confirmed(
    found: Verdict,
    base: Sequence[Process],
    head: Sequence[Process],
    floors: Floors | None,
    share: float = 1.0,
) -> Verdict:
    """The verdict where only that is proven which these processes show as well. Changes `found`."""
    metrics, slower = _not_shown(found, base, head, floors, share)
    for metric in metrics:
        metric.outcome, metric.more = UNCONFIRMED, None
    proven = sum(one.outcome == "regression" for one in found.metrics)
    if found.signatures:
        signatures = found.signatures
        for one in slower:
            one.outcome = UNCONFIRMED
            signatures.slower.remove(one)
            signatures.unconfirmed.append(one)
        proven += len(signatures.slower)
    found.outcome = outcome_of(found)
    n = plural(min(len(base), len(head)), "process", "processes")
    found.second = (
        f"A second set of {n} a side, judged by itself, agrees"
        if proven
        else f"The first set proves a slowdown, a second one of {n} a side does not: not confirmed"
    )
    return found


def _not_shown(
    found: Verdict, base: Sequence[Process], head: Sequence[Process], floors: Floors | None, share: float
) -> tuple[list[Metric], list[Slower]]:
    """Proven metrics and signatures that these processes do not show."""
    metrics, slower = [], []
    for metric in found.metrics:
        if metric.outcome == "regression":
            kept = floors.times_ns.get(metric.name, []) if floors else []
            a, b = ([one.times_ns.get(metric.name, 0.0) for one in side] for side in (base, head))
            if not _shows(a, b, found.max_slowdown, kept, share):
                metrics.append(metric)
    of_key = by_signature(floors)
    for one in found.signatures.slower if found.signatures else []:
        key: Key = (one.op, one.dims, one.types, one.kernel)
        a, b = ([each.signatures_ns.get(key, 0.0) for each in side] for side in (base, head))
        if not _shows(a, b, one.limit, of_key.get(key, []), share):
            slower.append(one)
    return metrics, slower


def _shows(
    base: Sequence[float], head: Sequence[float], limit: float, kept: Sequence[float], share: float
) -> bool:
    """Whether these times alone lie above the limit. What a process lacks is no time."""
    if min([*base, *head], default=0.0) <= 0:
        return False
    level = 1 - (1 - LEVEL) * share
    return decide(base, head, limit, level=level, equal=kept, ahead=False)["outcome"] == "regression"
