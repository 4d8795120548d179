"""The gate's second class: the GPU time of each signature (op, shapes, types, kernel) per step.

A kernel that is 5 % slower may be 0.2 % of the step, which no step time shows. Each signature is judged over
processes like the step. Slower is proven of all together (Holm), so that equal sides stay equal; excluded is
each by itself. The intervals hold for all signatures at once (Bonferroni), and are wider than what proves.
What costs less than 0.1 % of a step, or 1 µs, is no finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from lab.compare.check.floors import floor_of
from lab.compare.check.samples import Process
from lab.compare.side import Key
from lab.recordings.names import short_dims
from lab.stats.effects import holm
from lab.stats.gate import LEAST, LEAST_EQUAL, decide, scatters
from lab.stats.means import quantile

LEAST_SHARE, LEAST_NS = 0.001, 1000.0  # of a step, and per step: what a change has to cost
LISTED = 5  # undecided ones that are named
UNSURE, EXCLUDED, UNDECIDED = 0, 1, 2
TINY = 1e-9  # of rounding: what is closer is for `decide`
LONGEST = 60  # letters of a kernel's name in a sentence


class Slower(msgspec.Struct, kw_only=True):
    """One signature's decision. limit: the share above which it counts; floor: the change that 99 % of
    equal sides stay below here, where A/A floors were measured."""

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
    floor: float | None
    more: int | None


class Signatures(msgspec.Struct, kw_only=True):
    """tested: those in every process of both sides; share: of BASE's kernel time. slower, faster: proven.

    undecided counts all, and lists the costliest. level: of each interval, 99.5 % or more of all at once.
    with_floor: tested ones that have an A/A floor. unconfirmed: slower
    in one set of processes, and not in a second one."""

    level: float
    tested: int
    share: float
    excluded: int
    undecided: int
    slower: list[Slower]
    faster: list[Slower]
    listed: list[Slower]
    with_floor: int
    unconfirmed: list[Slower] = []

    @property
    def outcome(self) -> str:
        return (
            "regression" if self.slower else "undecided" if self.undecided or self.unconfirmed else "excluded"
        )


def judge_signatures(
    base: Sequence[Process],
    head: Sequence[Process],
    allowed: float,
    *,
    alarms: float,
    step_ns: float,
    kept: Mapping[Key, Sequence[float]],
) -> Signatures | None:
    """None where no process has a signature, or there are too few processes. alarms: the share of equal pairs
    of sides that may be called different; step_ns: of BASE; kept: the A/A processes' times."""
    if min(len(base), len(head)) < LEAST or not any(one.signatures_ns for one in (*base, *head)):
        return None
    keys = sorted(
        set.intersection(*({k for k, ns in one.signatures_ns.items() if ns > 0} for one in (*base, *head)))
    )
    alone = 1 - alarms
    level = 1 - (1 - alone) / max(len(keys), 1)
    a, b = (np.array([[one.signatures_ns[key] for key in keys] for one in side]) for side in (base, head))
    limits = np.maximum(allowed, max(LEAST_SHARE * step_ns, LEAST_NS) / _geometric(a))
    equal = [kept.get(key, ()) for key in keys]
    sure, high = quickly(a, b, limits, equal, alone)

    def decided_at(at: int, *, ahead: bool = False) -> tuple[Slower, float, float]:
        one, times = keys[at], (a[:, at], b[:, at])
        return _decided(one, times, float(limits[at]), equal[at], (level, alone), ahead=ahead)

    p_slower, p_faster = np.ones((2, len(keys)))  # what `quickly` decides no correction could prove
    found: dict[int, Slower] = {}
    for at in np.flatnonzero(sure == UNSURE).tolist():
        found[at], p_slower[at], p_faster[at] = decided_at(at)
    slower, faster = (np.flatnonzero(holm(p) <= (1 - alone) / 2).tolist() for p in (p_slower, p_faster))
    for at in slower:
        found[at].outcome = "regression"
    open_at = [at for at, one in found.items() if one.outcome == "undecided"]
    open_at += np.flatnonzero(sure == UNDECIDED).tolist()
    costly = sorted(open_at, key=lambda at: -float(high[at] * a[:, at].mean()))[:LISTED]
    everything = sum(sum(one.signatures_ns.values()) for one in base)
    return Signatures(
        level=level,
        tested=len(keys),
        share=float(a.sum()) / everything if everything else 0.0,
        excluded=len(keys) - len(open_at) - len(slower),
        undecided=len(open_at),
        slower=[found[at] for at in slower],
        faster=[found[at] for at in faster],
        listed=[decided_at(at, ahead=True)[0] for at in costly],
        with_floor=sum(len(one) >= LEAST_EQUAL for one in equal),
    )


def quickly(
    a: np.ndarray, b: np.ndarray, limits: np.ndarray, equal: Sequence[Sequence[float]], level: float
) -> tuple[np.ndarray, np.ndarray]:
    """What `decide` says of each column (s,) where that is sure without its degrees of freedom, and the upper
    edge of its interval at most.

    a, b: (processes, s) times; equal: the A/A processes of each, which may be none; level: at which one alone
    is proven or excluded, of several none is proven sooner. Student's quantile falls with the degrees of
    freedom, which are at least those of the smaller side and at most those of both: what the widest interval
    excludes, `decide` excludes, and what the narrowest leaves open, it leaves open. A gain is unsure.
    """
    x, y = np.log(a), np.log(b)
    change, of_base, of_head = y.mean(axis=0) - x.mean(axis=0), x.var(axis=0, ddof=1), y.var(axis=0, ddof=1)
    error = np.sqrt(of_base / len(x) + of_head / len(y))
    few, many = min(len(x), len(y)) - 1, len(x) + len(y) - 2
    widest, narrowest = (quantile(1 - (1 - level) / 2, freedom) * error for freedom in (few, many))
    sizes = np.array([len(one) for one in equal])
    for n in sorted({*sizes[sizes >= LEAST_EQUAL].tolist()}):
        at = np.flatnonzero(sizes == n)
        among = np.log(np.array([equal[one] for one in at.tolist()])).var(axis=1, ddof=1)
        squares = (len(x) - 1) * of_base[at] + (len(y) - 1) * of_head[at] + (n - 1) * among
        variance = squares / (many + n - 1) * (1 / len(x) + 1 / len(y))
        together = quantile(1 - (1 - level) / 2, many + n - 1) * np.sqrt(variance)
        pairs = scatters(of_head[at], of_base[at], among, (len(y), len(x), n))
        # On the edge of what passes for alike either interval may hold, by rounding.
        surely, perhaps = (np.all([one <= most * (1 + by) for one, most in pairs], 0) for by in (-TINY, TINY))
        widest[at] = np.where(surely, together, np.maximum(together, widest[at]))
        narrowest[at] = np.where(perhaps, together, np.maximum(together, narrowest[at]))
    widest, narrowest = widest * (1 + TINY), narrowest * (1 - TINY)
    limit = np.log1p(limits)
    found = np.full(len(change), UNSURE)
    found[np.abs(change) + widest < limit] = EXCLUDED
    found[np.abs(change - limit) <= narrowest] = UNDECIDED
    return found, change + widest


def _geometric(times: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.exp(np.log(times).mean(axis=0))
    return found


def _decided(
    key: Key,
    times: tuple[np.ndarray, np.ndarray],
    limit: float,
    equal: Sequence[float],
    levels: tuple[float, float],
    *,
    ahead: bool,
) -> tuple[Slower, float, float]:
    """The decision, and how sure slower and faster are (p). levels: of the interval, and of excluding."""
    a, b = times
    found: dict[str, Any] = decide(
        a.tolist(), b.tolist(), limit, level=levels[0], equal=equal, excluding=levels[1], ahead=ahead
    )
    one = Slower(
        op=key[0],
        dims=key[1],
        types=key[2],
        kernel=key[3],
        limit=limit,
        ns_base=float(_geometric(a)),
        ns_head=float(_geometric(b)),
        floor=floor_of(equal, len(a), len(b)),
        **{name: found[name] for name in ("outcome", "change", "low", "high", "more")},
    )
    return one, found["p_slower"], found["p_faster"]


def sentences(found: Signatures) -> list[str]:
    """What is proven first, then how many are excluded, then what is not known."""
    lines = [f"Slower: {_words(one)}" for one in found.slower]
    lines += [f"Faster: {_words(one)}" for one in found.faster]
    lines += [f"Slower by the first set, not by the second: {_words(one)}" for one in found.unconfirmed]
    if not found.tested:
        return [
            "Signatures: none (op, shapes, kernel) is in every process of both sides, so none is compared."
        ]
    apart = "" if found.share > 0.999 else f", {found.share:.0%} of BASE's kernel time"
    counts = f"a slowdown beyond the limit is excluded for {found.excluded}"
    counts += f", proven for {len(found.slower)}" if found.slower else ""
    counts += f", not confirmed for {len(found.unconfirmed)}" if found.unconfirmed else ""
    counts += f", undecided for {found.undecided}" if found.undecided else ""
    lines.append(f"Signatures (op, shapes, kernel) in every process: {found.tested}{apart}; {counts}.")
    lines.append("A signature's limit is --max-slowdown, and 0.1 % of the step and 1 µs at least.")
    lines += [f"Undecided: {_words(one)}" for one in found.listed]
    if (left := found.undecided - len(found.listed)) > 0:
        lines.append(f"Undecided: {left} more, each costing less (--json counts them).")
    return lines


def _words(one: Slower) -> str:
    name = " ".join(filter(None, (one.op, short_dims(one.dims)))) or "no op known"
    kernel = one.kernel if len(one.kernel) <= LONGEST else f"{one.kernel[: LONGEST - 1]}…"
    costs = f"{one.change:+.1%} ({one.low:+.1%} to {one.high:+.1%})"
    times = f"{one.ns_base / 1000:,.1f} -> {one.ns_head / 1000:,.1f} µs per step"
    floor = "" if one.floor is None else f", A/A floor {one.floor:.1%}"
    if one.outcome == "regression" and one.low <= one.limit:
        floor += "; proven in order with the others (Holm), the interval holds for all at once"
    more = (
        ""
        if one.outcome != "undecided" or not one.more
        else f"; {one.more:,} more processes a side would decide"
    )
    return f"{name}: {kernel} {costs}, {times}, limit {one.limit:.1%}{floor}{more}"
