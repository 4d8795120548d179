"""Audits of isolated kernels: their times, and the forwards that their counts cover."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from lab.core.words import plural
from lab.power.readings import seconds_of
from lab.recordings.names import kernel_class, short_name
from lab.rooms.kernels.audit.check import Check, make_check

WINDOW_SLACK = 0.05
SAME_TIME = 0.02  # of the most common time
DISPATCH_US = (2.0, 10.0)  # the launch interval of a host lies in here
CLOSURE_PCT = 10


def of_isolated(isolated: dict[str, Any], model: dict[str, Any] | None) -> list[Check]:
    """All audits of isolated_kernels_timing.json; with the model's own run also the closure of time."""
    rows = isolated.get("kernels", [])
    counts = [(row["name"], int(row["invocation_count"])) for row in rows]
    forwards = forwards_in_counts(counts)
    checks = [iterations_match(rows), *dispatch_floor(rows)]
    if model:
        checks.append(closure_of_time(rows, forwards, float(model["full_model_inference_us"])))
    what = f"{plural(len(dict(counts)), 'kernel')}, counted over one forward"
    if forwards > 1:
        what = f"the counts cover {forwards} forwards, but the model's run is one forward"
    return [*checks, make_check("launches divide into forwards", forwards > 1, what, forwards=forwards)]


def iterations_match(rows: Sequence[dict[str, Any]]) -> Check:
    """Each row's window against its time per run times the runs it claims: |single*N - window| / window."""
    name = "iterations counted are those divided by"
    wrong: Counter[int] = Counter()
    for row in rows:
        window_s = seconds_of(row["end_timestamp"]) - seconds_of(row["start_timestamp"])
        claimed_s = float(row["single_time_us"]) * 1e-6 * int(row["benchmark_runs"])
        if window_s > 0 and abs(claimed_s / window_s - 1) > WINDOW_SLACK:
            wrong[round(claimed_s / window_s)] += 1
    if not wrong:
        return make_check(name, False, f"{plural(len(rows), 'window')} match runs * time per run")
    factor, most = wrong.most_common(1)[0]
    bad = sum(wrong.values())
    what = (
        f"{bad:,} of {plural(len(rows), 'row')} with runs that do not match their window; in {most} of them "
        f"the runs are {factor} times too many, so energy divided by them is {factor} times too small"
    )
    return make_check(name, True, what, rows=bad, factor=factor)


def dispatch_floor(rows: Sequence[dict[str, Any]]) -> list[Check]:
    """Per tier: if most kernels take the same time, and that is a launch interval, the host was measured."""
    tiers = sorted({row.get("tier", 0) for row in rows})
    return [_tier_floor(tier, [row for row in rows if row.get("tier", 0) == tier]) for tier in tiers]


def _tier_floor(tier: Any, rows: Sequence[dict[str, Any]]) -> Check:
    times = sorted(float(row["single_time_us"]) for row in rows)
    count, middle = most_alike(times)
    floor = count >= 5 and count > len(times) / 2 and DISPATCH_US[0] <= middle <= DISPATCH_US[1]
    what = f"tier {tier}: {plural(len(times), 'time')}, at most {count} alike"
    if floor:
        alike = [time for time in times if abs(time / middle - 1) <= SAME_TIME]
        same = f"{count} of {len(times)} kernels take {alike[0]:.2f} to {alike[-1]:.2f} us whatever they do"
        what = f"tier {tier}: {same}: this is the host's dispatch interval"
    return make_check("times are of kernels", floor, what, alike=count, of=len(times), us=round(middle, 2))


def most_alike(times: Sequence[float]) -> tuple[int, float]:
    """How many of the sorted times lie within SAME_TIME of one of them, and which one that is."""
    best, best_time, low = 0, math.nan, 0
    for middle in times:
        while times[low] < middle * (1 - SAME_TIME):
            low += 1
        count = sum(1 for time in times[low:] if time <= middle * (1 + SAME_TIME))
        if count > best:
            best, best_time = count, middle
    return best, best_time


def closure_of_time(rows: Sequence[dict[str, Any]], forwards: int, model_us: float) -> Check:
    """Predicted over measured time, as published and per forward, with every factor."""
    published_us = sum(float(row["single_time_us"]) * int(row["invocation_count"]) for row in rows)
    per_forward_us = published_us / forwards
    published_pct, per_forward_pct = (
        _percent_off(published_us, model_us),
        _percent_off(per_forward_us, model_us),
    )
    what = (
        f"the parts sum to {published_us / 1e3:.2f} ms, the model takes {model_us / 1e3:.2f} ms "
        f"({published_pct:+.0f} %); divided by {plural(forwards, 'forward')} they sum to "
        f"{per_forward_us / 1e3:.2f} ms ({per_forward_pct:+.0f} %), and the difference is unexplained"
    )
    return make_check(
        "parts add up to the whole",
        not (abs(per_forward_pct) <= CLOSURE_PCT and forwards == 1),
        what,
        published_ms=round(published_us / 1e3, 3),
        forwards=forwards,
        per_forward_ms=round(per_forward_us / 1e3, 3),
        model_ms=round(model_us / 1e3, 3),
        published_pct=round(published_pct, 1),
        per_forward_pct=round(per_forward_pct, 1),
    )


def _percent_off(value: float, reference: float) -> float:
    return 100 * (value / reference - 1)


def forwards_in_counts(counts: Iterable[tuple[str, int]]) -> int:
    """How many forwards the counts cover, told by the norms, which run equally often in each forward.

    The smallest count among the norms of the largest family is that of one forward (prefill has a geometry of
    its own); the family's sum divided by it is the number of forwards.
    """
    families: dict[str, list[int]] = {}
    for name, count in counts:
        if kernel_class(name) == "norm":
            families.setdefault(short_name(name), []).append(count)
    if not families:
        return 1
    family = max(families.values(), key=sum)
    whole, least = sum(family), min(family)
    return whole // least if whole % least == 0 else 1
