"""From windows to joules per launch, per token, and to the whole: does the sum of the parts meet the meter?

Gross is what the meter counted per launch; net subtracts the idle power with a context for the time that
passed. Closure: sum(count * net) + idle power * wall time of the model's run, against the meter over that
same run. Every factor is printed, because two faults can cancel.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from lab.core.words import first_few, plural
from lab.rooms.kernels.energy.choice import RawEnergy, RunEnergy, recorded_us, windows_of
from lab.rooms.kernels.energy.result import EnergyClosure, EnergyResult, EnergyRow, ModelEnergy
from lab.rooms.kernels.energy.rows import LIMIT_SLACK, rows_of
from lab.rooms.kernels.energy.windows import watts
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.stats.means import mean_interval

CLOSURE_BAR = 10.0  # percent


def evaluate(plan: ReplayPlan, raw: RawEnergy) -> EnergyResult:
    """All arithmetic of one measurement. Pure."""
    idle_w = idle_power(raw)
    limit = raw.facts_before.get("power_limit_w")
    rows = rows_of(plan, raw, idle_w, limit)
    model = _model(plan, raw.model, idle_w)
    closure = _closure(rows, model, idle_w)
    return EnergyResult(
        device_name=raw.device_name,
        meter=raw.meter,
        method=_method(raw),
        idle_cold_w=watts(raw.idle_cold),
        idle_context_w=idle_w,
        idle_before_w=watts(raw.idle_context),
        update_period_s=raw.update_period_s,
        power_limit_w=limit,
        facts_before=raw.facts_before,
        facts_after=raw.facts_after,
        rows=rows,
        by_class=_by_class(rows),
        model=model,
        closure=closure,
        uncovered_us=_uncovered_us(plan, rows),
        refused=_refused(raw, limit),
        lacks=[*_model_lacks(raw), *_orphans(plan)],
        notes=list(raw.notes),
        bars={
            "closure": None if closure is None else abs(closure.total_pct) <= CLOSURE_BAR,
            "net_closure": None if closure is None else abs(closure.net_pct) <= CLOSURE_BAR,
        },
    )


def _by_class(rows: list[EnergyRow]) -> dict[str, float]:
    """Net joules per run of each class, most first."""
    joules: dict[str, float] = defaultdict(float)
    for row in rows:
        joules[row.class_] += row.run_net_j or 0.0
    return {name: round(j, 6) for name, j in sorted(joules.items(), key=lambda item: -item[1])}


def _uncovered_us(plan: ReplayPlan, rows: list[EnergyRow]) -> float:
    """Recorded time of launches without an op and of calls without energy."""
    known = {row.sig_id for row in rows if row.net_j is not None}
    calls = sum(us for sig, us in recorded_us(plan).items() if plan.signatures[sig].sig_id not in known)
    return sum(orphan.dur_us for orphan in plan.orphans) + calls


def _model_lacks(raw: RawEnergy) -> list[str]:
    """What the model's own runs, which the closure is held against, lack."""
    if not raw.config.model_run:
        return []
    good = _with_energy(raw.model)
    why = next((f": {one.window.reason}" for one in raw.model if one.window.reason), "")
    if not good:
        return [f"the model's own run has no energy, so the calls are held against nothing{why}"]
    if len(good) == len(raw.model):
        return []
    lost = len(raw.model) - len(good)
    return [f"{lost} of {plural(len(raw.model), 'window')} of the model's own run without energy{why}"]


def _orphans(plan: ReplayPlan) -> list[str]:
    """Launches that belong to no call: never measured, and in no sum."""
    if not plan.orphans:
        return []
    us = sum(orphan.dur_us for orphan in plan.orphans)
    whole_us = us + sum(recorded_us(plan).values())
    share = f"{100 * us / whole_us:.1f} %" if whole_us else "an unknown share"
    return [
        f"no energy for {plural(len(plan.orphans), 'launch')} that no call can repeat, {share} of the "
        f"recorded time: {first_few(list(dict.fromkeys(one.reason for one in plan.orphans)))}"
    ]


def idle_power(raw: RawEnergy) -> float | None:
    """Idle power with a context: measured between the model's windows if possible, otherwise before all
    windows.

    A warm card leaks more than a cold one, so the idle power to subtract is that of the warm card.
    """
    between = [power for one in raw.idle_between if (power := watts(one)) is not None]
    return statistics.fmean(between) if between else watts(raw.idle_context)


def _model(plan: ReplayPlan, runs: Sequence[RunEnergy], idle_w: float | None) -> ModelEnergy | None:
    good = _with_energy(runs)
    if not good:
        return None
    each = [one.window.energy_j / one.window.launches for one in good if one.window.energy_j is not None]
    wall = [one.window.seconds / one.window.launches for one in good]
    mean, low, high = mean_interval(each)
    forwards = good[0].forwards_per_run
    tokens = int(plan.config.get("new_tokens", 0) or forwards)
    return ModelEnergy(
        what=good[0].what,
        runs=sum(one.window.launches for one in good),
        wall_s=statistics.fmean(wall),
        counter_j=_mean_per_run(good, "counter_j"),
        integral_j=_mean_per_run(good, "integral_j"),
        j_per_run=mean,
        ci_j=(low, high) if len(each) > 1 else None,
        j_per_forward=mean / forwards,
        j_per_token=mean / max(tokens, 1),
        net_j_per_run=None if idle_w is None else mean - idle_w * statistics.fmean(wall),
        forwards=forwards,
        tokens=tokens,
    )


def _with_energy(runs: Sequence[RunEnergy]) -> list[RunEnergy]:
    return [one for one in runs if one.window.launches > 0 and one.window.energy_j is not None]


def _mean_per_run(runs: Sequence[RunEnergy], name: str) -> float | None:
    pairs = [(getattr(one.window, name), one.window.launches) for one in runs]
    found = [joules / count for joules, count in pairs if joules is not None]
    return statistics.fmean(found) if found else None


def _closure(rows: list[EnergyRow], model: ModelEnergy | None, idle_w: float | None) -> EnergyClosure | None:
    if model is None or model.j_per_run is None or idle_w is None or model.net_j_per_run is None:
        return None
    total = sum(row.run_net_j or 0.0 for row in rows)
    own = sum(row.run_net_j or 0.0 for row in rows if row.measured)
    idle_j = idle_w * model.wall_s
    net = model.net_j_per_run
    return EnergyClosure(
        sum_net_j=total,
        measured_share=own / total if total else math.nan,
        idle_w=idle_w,
        wall_s=model.wall_s,
        idle_j=idle_j,
        predicted_j=total + idle_j,
        measured_j=model.j_per_run,
        measured_net_j=net,
        total_pct=100 * ((total + idle_j) / model.j_per_run - 1),
        net_pct=100 * (total / net - 1) if net else math.nan,
        idle_watt_pct=100 * model.wall_s / net if net else math.nan,
    )


def _refused(raw: RawEnergy, limit: float | None) -> list[str]:
    """Why the measurement as a whole cannot be trusted; empty if it can."""
    found = []
    if limit and any((watts(window) or 0.0) > limit * LIMIT_SLACK for window in windows_of(raw)):
        found.append(f"a window lies above the board's limit of {limit:.0f} W")
    if watts(raw.idle_context) is None:
        found.append("idle power was not measured, so there is no net energy")
    if others := raw.facts_after.get("other_processes"):
        found.append(f"{plural(others, 'other process')} used the GPU at the end")
    return found


def _method(raw: RawEnergy) -> str:
    return ", ".join(sorted({window.method for window in windows_of(raw)})) or "none"
