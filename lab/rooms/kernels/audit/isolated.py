"""Audits of kernels that were published one by one: their runs, their times, and their sum."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

from lab.perfmodel.classes import kernel_class
from lab.power.readings import seconds_of
from lab.recordings.names import short_name
from lab.rooms.kernels.audit.check import CLOSURE_PCT, Check, make_check

WINDOW_SLACK, SAME_TIME = 0.05, 0.02
DISPATCH_US = (2.0, 10.0)  # the launch interval of a host lies in here
Rows = list[dict[str, Any]]


def seconds_between(run: dict[str, Any]) -> float:
    return seconds_of(run["end_timestamp"]) - seconds_of(run["start_timestamp"])


def of_isolated(rows: Rows, model_us: float) -> list[Check]:
    """Windows against the runs they claim, times that are a launch interval, and the sum of all kernels."""
    wrong: Counter[int] = Counter()
    tiers, norms = defaultdict(list), defaultdict(list)
    for row in rows:
        tiers[row.get("tier", 0)].append(float(row["single_time_us"]))
        if kernel_class(row["name"]) == "norm":
            norms[short_name(row["name"])].append(int(row["invocation_count"]))
        claimed_s, window_s = (
            float(row["single_time_us"]) * 1e-6 * int(row["benchmark_runs"]),
            seconds_between(row),
        )
        if window_s > 0 and abs(claimed_s / window_s - 1) > WINDOW_SLACK:
            wrong[round(claimed_s / window_s)] += 1
    factor, bad = max(wrong, key=wrong.__getitem__, default=1), sum(wrong.values())
    answer = (
        f"{bad} of {len(rows)} rows claim other runs than their window holds, most {factor} times as many"
    )
    checks = [make_check("iterations counted are those divided by", bad > 0, answer, rows=bad, factor=factor)]
    checks += [_dispatch_floor(tier, sorted(tiers[tier])) for tier in sorted(tiers)]
    # Norms run equally often in each forward, and those of the prefill have a row of their own.
    family = max(norms.values(), key=sum, default=[1])
    forwards = sum(family) // min(family) if sum(family) % min(family) == 0 else 1
    if model_us:
        checks.append(_closure(rows, forwards, model_us))
    answer = f"the counts cover {forwards} forwards; the model's run is one"
    return [*checks, make_check("launches divide into forwards", forwards > 1, answer, forwards=forwards)]


def _dispatch_floor(tier: Any, times_us: list[float]) -> Check:
    """If most kernels take the same time, and that is a launch interval, the host was measured."""
    groups = [[t for t in times_us if abs(t / middle - 1) <= SAME_TIME] for middle in times_us]
    alike, middle = max(zip(groups, times_us, strict=True), key=lambda pair: len(pair[0]))
    floor = len(alike) >= max(5, len(times_us) / 2) and DISPATCH_US[0] <= middle <= DISPATCH_US[1]
    answer = f"tier {tier}: {len(alike)} of {len(times_us)} kernels take {alike[0]:.2f} to {alike[-1]:.2f} us"
    answer += " whatever they do: the host's dispatch interval" if floor else ""
    factors = {"alike": len(alike), "of": len(times_us), "us": round(middle, 2)}
    return make_check("times are of kernels", floor, answer, **factors)


def _closure(rows: Rows, forwards: int, model_us: float) -> Check:
    sum_us = math.fsum(float(row["single_time_us"]) * int(row["invocation_count"]) for row in rows)
    forward_us = sum_us / forwards
    published_pct, forward_pct = (100 * (us / model_us - 1) for us in (sum_us, forward_us))
    answer = (
        f"the parts sum to {sum_us / 1e3:.2f} ms, the model takes {model_us / 1e3:.2f} ms "
        f"({published_pct:+.0f} %); "
        f"per forward, of {forwards}, they sum to {forward_us / 1e3:.2f} ms ({forward_pct:+.0f} %)"
    )
    times_ms = {"published_ms": sum_us / 1e3, "per_forward_ms": forward_us / 1e3, "model_ms": model_us / 1e3}
    factors = {name: round(ms, 3) for name, ms in times_ms.items()} | {"forwards": forwards}
    factors |= {"published_pct": round(published_pct, 1), "per_forward_pct": round(forward_pct, 1)}
    refused = forwards > 1 or not abs(forward_pct) <= CLOSURE_PCT
    return make_check("parts add up to the whole", refused, answer, **factors)
