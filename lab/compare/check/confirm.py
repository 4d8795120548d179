"""The second, independent set of processes: a slowdown that one set proved has to show in another one, too.

What one set has in common (a state of the machine while it ran, the order of its processes) may pass for the
difference of the sides. A second set, run afterwards and judged by itself, does not share it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.compare.check.floors import Floors, by_signature, floor_of
from lab.compare.check.gate import Verdict, outcome_of
from lab.compare.check.samples import Process
from lab.compare.side import Key
from lab.core.words import plural
from lab.stats.gate import decide

FOLDER = "second"  # beside base/ and head/; it has both again
LEVEL = 0.90  # of the interval that has to lie above the limit: one-sided 5 %, of things already proven
UNCONFIRMED = "unconfirmed"


def confirmed(
    found: Verdict, base: Sequence[Process], head: Sequence[Process], floors: Floors | None
) -> Verdict:
    """The verdict where only that is proven which these processes show as well. Changes `found`."""
    proven = 0
    for metric in found.metrics:
        if metric.outcome == "regression":
            kept = floors.times_ns.get(metric.name, []) if floors else []
            a, b = ([one.times_ns.get(metric.name, 0.0) for one in side] for side in (base, head))
            if _shows(a, b, found.max_slowdown, kept):
                proven += 1
            else:
                metric.outcome, metric.more = UNCONFIRMED, None
    if found.signatures:
        signatures, floor = found.signatures, by_signature(floors)
        for one in [*signatures.slower]:
            key: Key = (one.op, one.dims, one.types, one.kernel)
            a, b = ([each.signatures_ns.get(key, 0.0) for each in side] for side in (base, head))
            if _shows(a, b, one.limit, floor.get(key, [])):
                proven += 1
            else:
                one.outcome = UNCONFIRMED
                signatures.slower.remove(one)
                signatures.unconfirmed.append(one)
    found.outcome = outcome_of(found)
    n = plural(min(len(base), len(head)), "process", "processes")
    found.second = (
        f"A second set of {n} a side, judged by itself, agrees"
        if proven
        else f"The first set proves a slowdown, a second one of {n} a side does not: not confirmed"
    )
    return found


def _shows(base: Sequence[float], head: Sequence[float], limit: float, kept: Sequence[float]) -> bool:
    """Whether these times alone lie above the limit. What a process lacks is no time."""
    if min([*base, *head], default=0.0) <= 0:
        return False
    floor = floor_of(kept, len(base), len(head)) or 0.0
    return decide(base, head, limit, level=LEVEL, floor=floor, ahead=False)["outcome"] == "regression"
