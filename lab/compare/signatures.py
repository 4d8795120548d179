"""The gate's second class: the GPU time of each signature (op, shapes, types, kernel) per step.

A kernel that is 5 % slower may be 0.2 % of the step, which no step time shows. Each signature is judged over
processes like the step. Slower is proven at a level that all of them share (Bonferroni), so that equal sides
stay equal; excluded is each by itself. What costs less than 0.1 % of a step, or 1 µs, is no finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from lab.compare.floors import floor_of
from lab.compare.samples import Process
from lab.compare.side import Key
from lab.stats.gate import LEAST, decide
from lab.stats.student import quantile

LEAST_SHARE, LEAST_NS = 0.001, 1000.0  # of a step, and per step: what a change has to cost
LISTED = 5  # undecided ones that are named
UNSURE, EXCLUDED, UNDECIDED = 0, 1, 2
TINY = 1e-9  # of rounding: what is closer is for `decide`
LONGEST = 60  # letters of a kernel's name in a sentence


class Slower(msgspec.Struct, kw_only=True):
    """One signature's decision. limit: the share above which it counts; floor: its A/A floor, if measured."""

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

    undecided counts all, and lists the costliest. level: of each interval. with_floor: tested ones that have
    an A/A floor."""

    level: float
    tested: int
    share: float
    excluded: int
    undecided: int
    slower: list[Slower]
    faster: list[Slower]
    listed: list[Slower]
    with_floor: int

    @property
    def outcome(self) -> str:
        return "regression" if self.slower else "undecided" if self.undecided else "excluded"


def judge_signatures(
    base: Sequence[Process],
    head: Sequence[Process],
    allowed: float,
    *,
    alarms: float,
    looks: int,
    step_ns: float,
    kept: Mapping[Key, Sequence[float]],
) -> Signatures | None:
    """None where no process has a signature, or there are too few processes. alarms: the share of equal pairs
    of sides that may be called different, over all looks; step_ns: of BASE."""
    if min(len(base), len(head)) < LEAST or not any(one.signatures_ns for one in (*base, *head)):
        return None
    keys = sorted(
        set.intersection(*({k for k, ns in one.signatures_ns.items() if ns > 0} for one in (*base, *head)))
    )
    level, alone = 1 - alarms / max(len(keys), 1) / looks, 1 - alarms / looks
    a, b = (np.array([[one.signatures_ns[key] for key in keys] for one in side]) for side in (base, head))
    limits = np.maximum(allowed, max(LEAST_SHARE * step_ns, LEAST_NS) / _geometric(a))
    floors = [floor_of(kept[key], len(a), len(b)) if key in kept else None for key in keys]
    sure, high = quickly(a, b, limits, np.array([one or 0.0 for one in floors]), (level, alone))

    def decided_at(at: int, *, ahead: bool = False) -> Slower:
        one, times = keys[at], (a[:, at], b[:, at])
        return _decided(one, times, float(limits[at]), floors[at], (level, alone), ahead=ahead)

    found = {at: decided_at(at) for at in np.flatnonzero(sure == UNSURE).tolist()}
    decided = list(found.values())
    open_at = [at for at, one in found.items() if one.outcome == "undecided"]
    open_at += np.flatnonzero(sure == UNDECIDED).tolist()
    costly = sorted(open_at, key=lambda at: -float(high[at] * a[:, at].mean()))[:LISTED]
    everything = sum(sum(one.signatures_ns.values()) for one in base)
    return Signatures(
        level=level,
        tested=len(keys),
        share=float(a.sum()) / everything if everything else 0.0,
        excluded=len(keys) - len(open_at) - sum(one.outcome == "regression" for one in decided),
        undecided=len(open_at),
        slower=[one for one in decided if one.outcome == "regression"],
        faster=[one for one in decided if one.high < -one.limit],
        listed=[decided_at(at, ahead=True) for at in costly],
        with_floor=sum(one is not None for one in floors),
    )


def quickly(
    a: np.ndarray, b: np.ndarray, limits: np.ndarray, floors: np.ndarray, levels: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """What `decide` says of each column (s,) where that is sure without its degrees of freedom, and the upper
    edge of its interval at most.

    a, b: (processes, s) times; levels: at which a regression is proven, and excluded. Student's quantile
    falls with the degrees of freedom, which are at least those of the smaller side and at most those of both:
    what the widest interval excludes, `decide` excludes, and what the narrowest leaves open, it leaves open.
    A gain is unsure.
    """
    x, y = np.log(a), np.log(b)
    change = y.mean(axis=0) - x.mean(axis=0)
    error = np.sqrt(x.var(axis=0, ddof=1) / len(x) + y.var(axis=0, ddof=1) / len(y))
    few, many = min(len(x), len(y)) - 1, len(x) + len(y) - 2
    prove, widest, narrowest = (
        np.maximum(quantile(1 - (1 - level) / 2, freedom) * error, floors)
        for level, freedom in ((levels[0], many), (levels[1], few), (levels[1], many))
    )
    limit = np.log1p(limits)
    found = np.full(len(change), UNSURE)
    found[np.abs(change) + widest < limit] = EXCLUDED
    found[(change - prove * (1 - TINY) <= limit) & (change + narrowest * (1 - TINY) >= limit)] = UNDECIDED
    return found, change + widest


def _geometric(times: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.exp(np.log(times).mean(axis=0))
    return found


def _decided(
    key: Key,
    times: tuple[np.ndarray, np.ndarray],
    limit: float,
    floor: float | None,
    levels: tuple[float, float],
    *,
    ahead: bool,
) -> Slower:
    """levels: at which a regression is proven, and excluded."""
    a, b = times
    found: dict[str, Any] = decide(
        a.tolist(), b.tolist(), limit, level=levels[0], floor=floor or 0.0, excluding=levels[1], ahead=ahead
    )
    return Slower(
        op=key[0],
        dims=key[1],
        types=key[2],
        kernel=key[3],
        limit=limit,
        ns_base=float(_geometric(a)),
        ns_head=float(_geometric(b)),
        floor=floor,
        **{name: found[name] for name in ("outcome", "change", "low", "high", "more")},
    )


def sentences(found: Signatures) -> list[str]:
    """What is proven first, then how many are excluded, then what is not known."""
    lines = [f"Slower: {_words(one)}" for one in found.slower]
    lines += [f"Faster: {_words(one)}" for one in found.faster]
    if not found.tested:
        return [
            "Signatures: none (op, shapes, kernel) is in every process of both sides, so none is compared."
        ]
    apart = "" if found.share > 0.999 else f", {found.share:.0%} of BASE's kernel time"
    counts = f"a slowdown is excluded for {found.excluded}"
    counts += f", proven for {len(found.slower)}" if found.slower else ""
    counts += f", undecided for {found.undecided}" if found.undecided else ""
    lines.append(f"Signatures (op, shapes, kernel) in every process: {found.tested}{apart}; {counts}.")
    lines += [f"Undecided: {_words(one)}" for one in found.listed]
    if (left := found.undecided - len(found.listed)) > 0:
        lines.append(f"Undecided: {left} more, each costing less (--json counts them).")
    return lines


def _words(one: Slower) -> str:
    name = " ".join(filter(None, (one.op, one.dims))) or "no op known"
    kernel = one.kernel if len(one.kernel) <= LONGEST else f"{one.kernel[: LONGEST - 1]}…"
    costs = f"{one.change:+.1%} ({one.low:+.1%} to {one.high:+.1%})"
    times = f"{one.ns_base / 1000:,.1f} -> {one.ns_head / 1000:,.1f} µs per step"
    floor = "" if one.floor is None else f", A/A floor {one.floor:.1%}"
    more = (
        ""
        if one.outcome != "undecided" or not one.more
        else f"; {one.more:,} more processes a side would decide"
    )
    return f"{name}: {kernel} {costs}, {times}, limit {one.limit:.1%}{floor}{more}"
