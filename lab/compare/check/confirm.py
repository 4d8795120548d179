"""When a check looks, and the second set of processes: a slowdown that one set proved has to show in another.

Looking again and again at the full level calls equal sides different. The later a look, the more of the false
alarms it has: of small changes only the last one knows enough, and large ones show at any level.

What one set has in common (a state of the machine while it ran, the order of its processes) may pass for the
difference of the sides. A second set of as many processes, run afterwards and judged by itself, does not
share it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.compare.check.gate import Verdict, outcome_of
from lab.compare.check.samples import Process
from lab.compare.signatures import Slower
from lab.compare.whole import LEAST_CHANGE, Total, values_of
from lab.core.words import plural
from lab.stats.gate import decide

SHARES = {3: 0.1, 6: 0.2, 12: 0.7}  # of the allowed false alarms, by the processes per side at a look
LOOKS = tuple(SHARES)
FOLDER = "second"  # beside base/ and head/; it has both again
LEVEL = 0.90  # of the interval that has to lie above the limit: one-sided 5 %, of things already proven
UNCONFIRMED = "unconfirmed"


def confirmed(verdict: Verdict, base: Sequence[Process], head: Sequence[Process]) -> Verdict:
    """The verdict where only that is proven which these processes show as well. Changes `verdict`."""
    totals, signatures = _not_shown(verdict, base, head)
    for total in totals:
        total.outcome, total.further = UNCONFIRMED, None
    proven = sum(total.outcome == "regression" for total in verdict.metrics)
    if verdict.signatures:
        for signature in signatures:
            signature.outcome = UNCONFIRMED
            verdict.signatures.slower.remove(signature)
            verdict.signatures.unconfirmed.append(signature)
        proven += len(verdict.signatures.slower)
    verdict.outcome = outcome_of(verdict)
    n = plural(min(len(base), len(head)), "process", "processes")
    verdict.second = (
        f"A second set of {n} per side, judged by itself, agrees"
        if proven
        else f"The first set proves a slowdown, a second one of {n} per side does not: not confirmed"
    )
    return verdict


def _not_shown(
    verdict: Verdict, base: Sequence[Process], head: Sequence[Process]
) -> tuple[list[Total], list[Slower]]:
    """Proven totals and signatures that these processes do not show."""
    times = [process.steps_ns for process in base], [process.steps_ns for process in head]
    limit = max(verdict.max_slowdown, LEAST_CHANGE)
    totals = [
        total
        for total in verdict.metrics
        if total.outcome == "regression"
        and not _shows(*values_of(*times, total.name, total.statistic), limit)
    ]
    signatures = []
    for signature in verdict.signatures.slower if verdict.signatures else []:
        base_ns, head_ns = (
            [process.signatures_ns.get(signature.key, 0.0) for process in side] for side in (base, head)
        )
        if not _shows(base_ns, head_ns, signature.limit):
            signatures.append(signature)
    return totals, signatures


def _shows(base: Sequence[float], head: Sequence[float], limit: float) -> bool:
    """Whether these times alone lie above the limit. What a process lacks does not count as a time."""
    if min([*base, *head], default=0.0) <= 0:
        return False
    return decide(base, head, limit, level=LEVEL, ahead=False).outcome == "regression"
