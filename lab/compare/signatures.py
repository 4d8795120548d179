"""The GPU time of each signature (op, shapes, types, kernel) per step, judged over processes.

`lab check` decides by it beside the whole (lab.compare.whole), `lab diff` proves its rows by it. A kernel
that is 5 % slower may be 0.2 % of the step, which no step time shows. What costs less than 0.1 % of a step,
or 1 µs, is not a finding. Intervals hold for all signatures at once (Bonferroni), and are wider than what
proves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lab.compare.side import Key, short_kernel
from lab.compare.whole import decide_all, fields_of, geometric_mean
from lab.recordings.names import short_dims
from lab.stats.gate import LEAST, decide

LEAST_SHARE, LEAST_NS = 0.001, 1000.0  # of a step, and per step: what a change has to cost
LISTED = 5  # undecided ones that are named
KeyTimes = Mapping[Key, float]  # of one process: ns per step of each signature


class Slower(msgspec.Struct, kw_only=True):
    """One signature's decision. limit: the share above which it counts."""

    op: str
    dims: str
    types: str
    kernel: str
    outcome: str
    change: float
    low: float
    high: float
    limit: float
    ns_base: float
    ns_head: float
    further: int | None

    @property
    def key(self) -> Key:
        return (self.op, self.dims, self.types, self.kernel)


class Signatures(msgspec.Struct, kw_only=True):
    """tested: those in every process of both sides; share: of BASE's kernel time. slower, faster: proven.

    undecided counts all, and lists the costliest. level: of each interval, 99.5 % or more of all at once.
    unconfirmed: slower in one set of processes, and not in a second one."""

    level: float
    tested: int
    share: float
    excluded: int
    undecided: int
    slower: list[Slower]
    faster: list[Slower]
    listed: list[Slower]
    unconfirmed: list[Slower] = []

    @property
    def outcome(self) -> str:
        if self.slower:
            return "regression"
        return "undecided" if self.undecided or self.unconfirmed else "excluded"


def judge_signatures(
    base: Sequence[KeyTimes], head: Sequence[KeyTimes], allowed: float, *, alarms: float, step_ns: float
) -> Signatures | None:
    """None where no process has a signature, or there are too few processes. alarms: the share of equal pairs
    of sides that may be called different; step_ns: of BASE."""
    processes = (*base, *head)
    if min(len(base), len(head)) < LEAST or not any(processes):
        return None
    keys = sorted(
        set.intersection(*({key for key, ns in process.items() if ns > 0} for process in processes))
    )
    floor_ns = max(LEAST_SHARE * step_ns, LEAST_NS)
    pairs = []
    for key in keys:
        base_ns, head_ns = ([process[key] for process in side] for side in (base, head))
        pairs.append((base_ns, head_ns, max(allowed, floor_ns / geometric_mean(base_ns))))
    # How many more processes would decide is worked out for the costliest alone.
    decisions = decide_all(pairs, [True] * len(pairs), alarms=alarms, ahead=False)
    judged = [
        Slower(
            op=key[0],
            dims=key[1],
            types=key[2],
            kernel=key[3],
            limit=limit,
            ns_base=geometric_mean(base_ns),
            ns_head=geometric_mean(head_ns),
            **fields_of(Slower, decision) | {"further": None},
        )
        for key, (base_ns, head_ns, limit), decision in zip(keys, pairs, decisions, strict=True)
    ]
    undecided = [index for index, signature in enumerate(judged) if signature.outcome == "undecided"]
    undecided.sort(key=lambda index: -judged[index].high * judged[index].ns_base)
    level = 1 - alarms / max(len(keys), 1)
    for index in undecided[:LISTED]:
        judged[index].further = decide(*pairs[index], level=level, excluding=1 - alarms).further
    total_ns = sum(sum(process.values()) for process in base)
    tested_ns = sum(process[key] for process in base for key in keys)
    return Signatures(
        level=level,
        tested=len(keys),
        share=tested_ns / total_ns if total_ns else 0.0,
        excluded=sum(signature.outcome == "excluded" for signature in judged),
        undecided=len(undecided),
        slower=[signature for signature in judged if signature.outcome == "regression"],
        faster=[signature for signature, decision in zip(judged, decisions, strict=True) if decision.faster],
        listed=[judged[index] for index in undecided[:LISTED]],
    )


def sentences(signatures: Signatures) -> list[str]:
    """What is proven first, then how many are excluded, then what is not known."""
    if not signatures.tested:
        return [
            "Signatures: none (op, shapes, kernel) is in every process of both sides, so none is compared."
        ]
    headed = {
        "Slower": signatures.slower,
        "Faster": signatures.faster,
        "Slower by the first set, not by the second": signatures.unconfirmed,
    }
    lines = [f"{head}: {_words(signature)}" for head, named in headed.items() for signature in named]
    apart = "" if signatures.share > 0.999 else f", {signatures.share:.0%} of BASE's kernel time"
    counts = {
        "proven": len(signatures.slower),
        "not confirmed": len(signatures.unconfirmed),
        "undecided": signatures.undecided,
    }
    further = "".join(f", {outcome} for {count}" for outcome, count in counts.items() if count)
    excluded = f"a slowdown beyond the limit is excluded for {signatures.excluded}{further}"
    lines.append(f"Signatures (op, shapes, kernel) in every process: {signatures.tested}{apart}; {excluded}.")
    lines.append("A signature's limit is --max-slowdown, and 0.1 % of the step and 1 µs at least.")
    lines += [f"Undecided: {_words(signature)}" for signature in signatures.listed]
    if (left := signatures.undecided - len(signatures.listed)) > 0:
        lines.append(f"Undecided: {left} more, each costing less (--json counts them).")
    return lines


def _words(signature: Slower) -> str:
    name = " ".join(filter(None, (signature.op, short_dims(signature.dims)))) or "no op known"
    costs = f"{signature.change:+.1%} ({signature.low:+.1%} to {signature.high:+.1%})"
    times = f"{signature.ns_base / 1000:,.1f} -> {signature.ns_head / 1000:,.1f} µs per step"
    note = ""
    if signature.outcome == "regression" and signature.low <= signature.limit:
        note = "; proven in order with the others (Holm), the interval holds for all at once"
    elif signature.outcome == "undecided" and signature.further:
        note = f"; {signature.further:,} more processes per side would decide"
    return f"{name}: {short_kernel(signature.kernel)} {costs}, {times}, limit {signature.limit:.1%}{note}"
