"""What a replay proves: the same kernel or not, how far off its time is, and whether the parts add up to the
whole.

Error = (replay - trace) / trace on medians. Closure compares the sum of replayed times with the sum of
recorded ones, per forward.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from lab.core.words import plural
from lab.errors import BadDataError
from lab.recordings.names import short_name
from lab.rooms.kernels.replay.args import RawReplay, ReplayPlan
from lab.rooms.kernels.replay.calls.signatures import COLLECTIVE
from lab.rooms.kernels.replay.proof.rows import (
    EXACT,
    REBUILT,
    CallProof,
    Coverage,
    ForwardClosure,
    Result,
    Row,
    call_proofs,
    origin_of,
    rows_of,
)

OFTEN = 8  # a launch recorded less often carries the noise of a single reading
TIME_BAR, ERROR_BAR, CLOSURE_BAR = 98.0, 5.0, 5.0  # percent


def evaluate(plan: ReplayPlan, raw: RawReplay) -> Result:
    """All comparisons of one replay with its recording. Pure."""
    if len(raw.signatures) != len(plan.signatures):
        raise BadDataError(
            f"the replay has {plural(len(raw.signatures), 'signature')} but its plan {len(plan.signatures)}: "
            "they are of different runs",
            fix="analyse a run folder as the replay left it",
        )
    calls = call_proofs(plan, raw)
    kernel_us = sum(us for call in plan.calls for us in call.dur_us) + sum(o.dur_us for o in plan.orphans)
    rows = [
        row for sig in range(len(plan.signatures)) for row in rows_of(plan, raw, sig, calls[sig], kernel_us)
    ]
    closure = _closure(plan, raw, calls) if raw.calls else []
    same_gpu = raw.device_name == plan.origin.device_name and bool(raw.device_name)
    result = Result(
        mode=raw.mode,
        repeats=raw.repeats,
        device=raw.device,
        device_name=raw.device_name,
        trace_device_name=plan.origin.device_name,
        same_gpu=same_gpu,
        coverage=_coverage(plan, raw, calls),
        error=_errors(rows),
        closure=closure,
        rows=rows,
        uncovered=_uncovered(plan, raw, calls),
        sources=dict(Counter(origin_of(s, r) for s, r in zip(plan.signatures, raw.signatures, strict=True))),
        versions=raw.versions,
        notes=[*plan.notes, *raw.notes, *_notes(plan, raw)],
        bars={},
    )
    result.bars = bars(result)
    return result


def _coverage(plan: ReplayPlan, raw: RawReplay, calls: list[list[CallProof]]) -> dict[str, Coverage]:
    """By kind of launch; launches that no op owns count as not rebuilt, so nothing recorded is left out.

    Collectives are a kind of their own: most of their time is waiting for other ranks.
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0.0, 0.0, 0.0])
    for sig, proofs in enumerate(calls):
        signature, rebuilt = plan.signatures[sig], raw.signatures[sig].status in REBUILT
        for proof in proofs:
            for position, us in enumerate(plan.calls[proof.call].dur_us):
                kind = signature.launches[position].kind if signature.launches else "cpu_op"
                _count(sums[kind], us, rebuilt, proof.same == EXACT)
    for orphan in plan.orphans:
        kind = "collective" if orphan.reason == COLLECTIVE else orphan.launch.kind
        _count(sums[kind], orphan.dur_us, False, False)
    return {
        kind: Coverage(
            launches=int(s[0]),
            rebuilt_launches=int(s[1]),
            same_launches=int(s[2]),
            time_us=round(s[3], 3),
            rebuilt_time_us=round(s[4], 3),
            same_time_us=round(s[5], 3),
        )
        for kind, s in sorted(sums.items())
    }


def _count(sums: list[float], us: float, rebuilt: bool, same: bool) -> None:
    for column, counts in ((0, True), (1, rebuilt), (2, same)):
        sums[column] += counts
        sums[column + 3] += us * counts


def _errors(rows: list[Row]) -> dict[str, float | None]:
    """|error| over distinct launches: median, and mean weighted by recorded time."""
    held = [row for row in rows if row.err_pct is not None and row.kind == "kernel"]
    if not held:
        unknown = dict.fromkeys(("median_abs_pct", "weighted_abs_pct"))
        return {**unknown, "distinct": 0, "often": 0}
    sizes = np.array([abs(row.err_pct or 0.0) for row in held])
    weights = np.array([row.trace_sum_us for row in held])
    often = sizes[[row.count >= OFTEN for row in held]]
    return {
        "median_abs_pct": round(float(np.median(sizes)), 3),
        "weighted_abs_pct": round(float((sizes * weights).sum() / weights.sum()), 3),
        "median_abs_pct_often": round(float(np.median(often)), 3) if len(often) else None,
        "often": len(often),
        "distinct": len(held),
    }


def _closure(plan: ReplayPlan, raw: RawReplay, calls: list[list[CallProof]]) -> list[ForwardClosure]:
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for proofs in calls:
        for proof in proofs:
            call = plan.calls[proof.call]
            sums[call.forward][0] += sum(call.dur_us)
            if proof.same == EXACT and proof.dur_us:
                sums[call.forward][1] += sum(call.dur_us)
                sums[call.forward][2] += float(np.median(np.array(proof.dur_us), axis=0).sum())
    return [
        ForwardClosure(
            name=forward.name,
            phase=forward.phase,
            wall_us=forward.wall_us,
            busy_us=forward.busy_us,
            trace_sum_us=round(sums[index][0], 3),
            compared_us=round(sums[index][1], 3),
            replay_sum_us=round(sums[index][2], 3),
        )
        for index, forward in enumerate(plan.forwards)
        if sums[index][0] > 0
    ]


def _uncovered(plan: ReplayPlan, raw: RawReplay, calls: list[list[CallProof]]) -> list[dict[str, Any]]:
    """Every reason why time is missing from the proof, worst first."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for sig, proofs in enumerate(calls):
        signature, run = plan.signatures[sig], raw.signatures[sig]
        for proof in proofs:
            if proof.same != EXACT and not (raw.device == "cpu" and run.status in REBUILT):
                entry = sums[(signature.op, run.reason or proof.same)]
                entry[0] += max(1, len(signature.launches))
                entry[1] += sum(plan.calls[proof.call].dur_us)
    for orphan in plan.orphans:
        entry = sums[(short_name(orphan.launch.name), orphan.reason)]
        entry[0], entry[1] = entry[0] + 1, entry[1] + orphan.dur_us
    rows = [
        {"op": op, "reason": reason, "launches": int(n), "time_us": round(us, 3)}
        for (op, reason), (n, us) in sums.items()
    ]
    return sorted(rows, key=lambda row: -float(row["time_us"]))


def _notes(plan: ReplayPlan, raw: RawReplay) -> list[str]:
    notes = []
    if raw.device == "cpu":
        notes.append(
            "ops were called again on a CPU: no kernel is proven, and times are shown but not compared, "
            "because a recording's CPU times include the profiler's own work"
        )
    if raw.device == "cuda" and raw.num_sms != plan.origin.num_sms and plan.origin.num_sms:
        notes.append(
            f"the recording is of {plan.origin.device_name} ({plan.origin.num_sms} SMs), the replay of "
            f"{raw.device_name} ({raw.num_sms}): times are not comparable"
        )
    return notes


def bars(result: Result) -> dict[str, bool | None]:
    """The room's bars on a GPU; None if a bar does not apply."""
    kernel = result.coverage.get("kernel")
    if kernel is None or result.device == "cpu" or not result.same_gpu:
        return {"same_kernel_time": None, "median_error": None, "closure": None}
    share, error = kernel.percent("same", "time_us"), result.error["median_abs_pct"]
    in_order = result.mode == "in-order"
    closure_pct = total_closure(result)
    return {
        "same_kernel_time": share >= TIME_BAR,
        "median_error": None if not in_order or error is None else error <= ERROR_BAR,
        "closure": None if not in_order else abs(closure_pct) <= CLOSURE_BAR,
    }


def total_closure(result: Result) -> float:
    """How far the replayed sum of all forwards is off the recorded one, in percent."""
    compared = sum(one.compared_us for one in result.closure)
    replayed = sum(one.replay_sum_us for one in result.closure)
    return 100.0 * (replayed / compared - 1) if compared else math.nan
