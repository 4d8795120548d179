"""From windows to joules per launch, per token, and to the whole: does the sum of the parts meet the meter?

Gross is what the meter counted per launch; net subtracts the idle power with a context for the time that
passed. Closure: sum(count * net) + idle power * wall time of the model's run, against the meter over that
same run. Every factor is printed, because two faults can cancel.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from lab.core.words import first_few, plural
from lab.perfmodel.classes import class_of_launch
from lab.power.windows import watts
from lab.recordings.names import short_name
from lab.rooms.kernels.energy.choice import (
    RawEnergy,
    RunEnergy,
    SignatureEnergy,
    per_call_us,
    recorded_us,
    windows_of,
)
from lab.rooms.kernels.replay.args import Launch, ReplayPlan
from lab.stats.means import mean_interval

CLOSURE_BAR = 10.0  # percent


def evaluate(plan: ReplayPlan, raw: RawEnergy) -> EnergyResult:
    """All arithmetic of one measurement. Pure."""
    idle_w, idle_error_w = idle_power(raw)
    limit = raw.facts_before.get("power_limit_w")
    rows = rows_of(plan, raw, idle_w, limit)
    model = _model(plan, raw.model, idle_w)
    closure = _closure(rows, model, idle_w, idle_error_w)
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
        bars={"net_closure": _is_closed(closure)},
    )


def _is_closed(closure: EnergyClosure | None) -> bool | None:
    """Whether the parts make up the whole net of idle; None where the error is too large to tell.

    The gross closure proves nothing: where a card is idle most of the time, idle power alone closes it.
    """
    if closure is None or (closure.net_error_pct is not None and closure.net_error_pct > CLOSURE_BAR):
        return None
    return abs(closure.net_pct) <= CLOSURE_BAR


def _by_class(rows: list[EnergyRow]) -> dict[str, float]:
    """Net joules per run of each class, most first."""
    joules: dict[str, float] = defaultdict(float)
    for row in rows:
        joules[row.class_] += row.run_net_j or 0.0
    return {name: round(j, 6) for name, j in sorted(joules.items(), key=lambda item: -item[1])}


def _uncovered_us(plan: ReplayPlan, rows: list[EnergyRow]) -> float:
    """Recorded time of launches without an op and of calls without energy."""
    measured = {row.sig_id for row in rows if row.net_j is not None}
    calls = sum(us for sig, us in recorded_us(plan).items() if plan.signatures[sig].sig_id not in measured)
    return sum(orphan.dur_us for orphan in plan.orphans) + calls


def _model_lacks(raw: RawEnergy) -> list[str]:
    """What the model's own runs, which the closure is held against, lack."""
    if not raw.config.model_run:
        return []
    lost = len(raw.model) - len(_with_energy(raw.model))
    reason = next((f": {run.window.reason}" for run in raw.model if run.window.reason), "")
    if lost == len(raw.model):
        return [f"the model's own run has no energy, so the calls are held against nothing{reason}"]
    windows = plural(len(raw.model), "window")
    return [f"{lost} of {windows} of the model's own run without energy{reason}"] if lost else []


def _orphans(plan: ReplayPlan) -> list[str]:
    """Launches that belong to no call: never measured, and in no sum."""
    if not plan.orphans:
        return []
    orphans_us = sum(orphan.dur_us for orphan in plan.orphans)
    all_us = orphans_us + sum(recorded_us(plan).values())
    share = f"{100 * orphans_us / all_us:.1f} %" if all_us else "an unknown share"
    reasons = first_few(list(dict.fromkeys(orphan.reason for orphan in plan.orphans)))
    launches = plural(len(plan.orphans), "launch")
    return [f"no energy for {launches} that no call can repeat, {share} of the recorded time: {reasons}"]


def idle_power(raw: RawEnergy) -> tuple[float | None, float | None]:
    """Idle power with a context, and its 95 % error, W: between the model's windows, else before all windows.

    A warm card leaks more than a cold one, so the idle power to subtract is that of the warm card.
    """
    between = [power for window in raw.idle_between if (power := watts(window)) is not None]
    if not between:
        return watts(raw.idle_context), None
    mean_w, low_w, _ = mean_interval(between)
    return mean_w, mean_w - low_w if len(between) > 1 else None


def _model(plan: ReplayPlan, runs: Sequence[RunEnergy], idle_w: float | None) -> ModelEnergy | None:
    measured = _with_energy(runs)
    if not measured:
        return None
    joules = [
        run.window.energy_j / run.window.launches for run in measured if run.window.energy_j is not None
    ]
    wall_s = statistics.fmean(run.window.seconds / run.window.launches for run in measured)
    mean, low, high = mean_interval(joules)
    forwards = measured[0].forwards_per_run
    tokens = int(plan.config.get("new_tokens", 0) or forwards)
    return ModelEnergy(
        subject=measured[0].subject,
        runs=sum(run.window.launches for run in measured),
        wall_s=wall_s,
        counter_j=_mean_per_run(measured, "counter_j"),
        integral_j=_mean_per_run(measured, "integral_j"),
        j_per_run=mean,
        ci_j=(low, high) if len(joules) > 1 else None,
        j_per_forward=mean / forwards,
        j_per_token=mean / max(tokens, 1),
        net_j_per_run=None if idle_w is None else mean - idle_w * wall_s,
        forwards=forwards,
        tokens=tokens,
    )


def _with_energy(runs: Sequence[RunEnergy]) -> list[RunEnergy]:
    return [run for run in runs if run.window.launches > 0 and run.window.energy_j is not None]


def _mean_per_run(runs: Sequence[RunEnergy], name: str) -> float | None:
    values = [(getattr(run.window, name), run.window.launches) for run in runs]
    joules = [total_j / count for total_j, count in values if total_j is not None]
    return statistics.fmean(joules) if joules else None


def _closure(
    rows: list[EnergyRow], model: ModelEnergy | None, idle_w: float | None, idle_error_w: float | None
) -> EnergyClosure | None:
    if model is None or model.j_per_run is None or idle_w is None or model.net_j_per_run is None:
        return None
    sum_j = sum(row.run_net_j or 0.0 for row in rows)
    measured_j = sum(row.run_net_j or 0.0 for row in rows if row.measured)
    idle_j = idle_w * model.wall_s
    net_j = model.net_j_per_run
    return EnergyClosure(
        sum_net_j=sum_j,
        measured_share=measured_j / sum_j if sum_j else math.nan,
        idle_w=idle_w,
        wall_s=model.wall_s,
        idle_j=idle_j,
        predicted_j=sum_j + idle_j,
        measured_j=model.j_per_run,
        measured_net_j=net_j,
        total_pct=100 * ((sum_j + idle_j) / model.j_per_run - 1),
        net_pct=100 * (sum_j / net_j - 1) if net_j else math.nan,
        net_error_pct=_net_error_pct(rows, model, sum_j, net_j, idle_error_w),
        idle_watt_pct=100 * model.wall_s / net_j if net_j else math.nan,
    )


def _net_error_pct(
    rows: Sequence[EnergyRow], model: ModelEnergy, sum_j: float, net_j: float, idle_error_w: float | None
) -> float | None:
    """95 % error of the net closure in percent points, of calls, run and idle power; None with one window."""
    if model.ci_j is None or idle_error_w is None or not net_j or not sum_j:
        return None
    run_j = (model.ci_j[1] - model.ci_j[0]) / 2
    calls_j = [row.count * (row.net_ci[1] - row.net_ci[0]) / 2 for row in rows if row.net_ci is not None]
    share = math.hypot(math.hypot(*calls_j) / sum_j, run_j / net_j, idle_error_w * model.wall_s / net_j)
    return 100 * abs(sum_j / net_j) * share


def _refused(raw: RawEnergy, limit: float | None) -> list[str]:
    """Why the measurement as a whole cannot be trusted; empty if it can."""
    reasons = []
    if limit and any((watts(window) or 0.0) > limit * LIMIT_SLACK for window in windows_of(raw)):
        reasons.append(f"a window lies above the board's limit of {limit:.0f} W")
    if watts(raw.idle_context) is None:
        reasons.append("idle power was not measured, so net energy is not known")
    if processes := raw.facts_after.get("other_processes"):
        reasons.append(f"{plural(processes, 'other process')} used the GPU at the end")
    return reasons


def _method(raw: RawEnergy) -> str:
    return ", ".join(sorted({window.method for window in windows_of(raw)})) or "none"


BUSY = 0.95  # below it a row says launch-bound
AGREE = (0.9, 1.1)  # integral over counter
LIMIT_SLACK = 1.05


def rows_of(plan: ReplayPlan, raw: RawEnergy, idle_w: float | None, limit: float | None) -> list[EnergyRow]:
    """One row per signature that was measured or has a stand-in, most energy first."""
    blank = _blank_rows(plan)
    measured = {entry.place: _measured(blank[entry.place], entry, idle_w, limit) for entry in raw.signatures}
    stood_for = [_stood_for(blank[sig], measured.get(stand_in)) for sig, stand_in in raw.stands_for.items()]
    return sorted([*measured.values(), *stood_for], key=lambda row: -(row.run_net_j or 0.0))


def _measured(row: EnergyRow, entry: SignatureEnergy, idle_w: float | None, limit: float | None) -> EnergyRow:
    """The row with the means over its windows."""
    windows = [window for window in entry.windows if window.energy_j is not None and window.launches > 0]
    gross_j = [window.energy_j / window.launches for window in windows if window.energy_j is not None]
    wall_us = [1e6 * window.seconds / window.launches for window in windows]
    row.measured, row.windows = True, len(windows)
    if windows:
        row.gross_j, row.wall_us = statistics.fmean(gross_j), statistics.median(wall_us)
        row.busy = row.trace_us / row.wall_us
        row.watts = statistics.fmean(power for window in windows if (power := watts(window)) is not None)
        row.method = windows[0].method
    if ratios := [window.ratio for window in windows if window.ratio]:
        row.ratio = statistics.fmean(ratios)
    if windows and idle_w is not None:
        net_j = [joules - idle_w * us * 1e-6 for joules, us in zip(gross_j, wall_us, strict=True)]
        row.net_j, low_j, high_j = mean_interval(net_j)
        row.net_ci = (low_j, high_j) if len(net_j) > 1 else None
        row.run_net_j = row.count * row.net_j
    row.flags = _flags(entry, row, limit)
    return row


def _flags(entry: SignatureEnergy, row: EnergyRow, limit: float | None) -> list[str]:
    flags = (
        [entry.reason] if entry.reason else [window.reason for window in entry.windows if window.reason][:1]
    )
    if row.busy is not None and row.busy < BUSY:
        queued = "" if entry.captured else ", queued without a graph"
        flags.append(f"launch-bound: kernels fill {100 * row.busy:.0f} % of the time{queued}")
    if row.ratio is not None and not AGREE[0] <= row.ratio <= AGREE[1]:
        flags.append(f"the sensors disagree: integral over counter {row.ratio:.2f}")
    if limit and row.watts and row.watts > limit * LIMIT_SLACK:
        flags.append(f"REFUSED: {row.watts:.0f} W above the board's limit of {limit:.0f} W")
    if row.op.endswith("_") and row.op != "aten::copy_":
        flags.append("in place: its data change with every repetition")
    if row.net_j is not None and row.net_j < 0:
        flags.append("REFUSED: net energy below zero")
    return flags


def _stood_for(row: EnergyRow, stand_in: EnergyRow | None) -> EnergyRow:
    """The row with the net power of `stand_in`, times its own recorded time."""
    if stand_in is None or stand_in.net_j is None:
        row.flags = ["its stand-in has no energy"]
        return row
    row.net_j = stand_in.net_j * row.trace_us / stand_in.trace_us
    row.run_net_j = row.count * row.net_j
    row.method = "power of " + stand_in.sig_id
    row.flags = [f"not measured: net power of {stand_in.op} ({stand_in.kernel[:40]}) times its own time"]
    return row


def _blank_rows(plan: ReplayPlan) -> list[EnergyRow]:
    """One row per signature, with what the recording says of it, by its launch that took longest."""
    per_call, counts = per_call_us(plan), Counter(call.sig for call in plan.calls)
    sums_us = [[0.0] * len(signature.launches) for signature in plan.signatures]
    for call in plan.calls:
        for position, us in enumerate(call.dur_us[: len(sums_us[call.sig])]):
            sums_us[call.sig][position] += us
    rows = []
    for sig, signature in enumerate(plan.signatures):
        times_us = sums_us[sig]
        launch = signature.launches[times_us.index(max(times_us))] if times_us else Launch("", "cpu_op")
        rows.append(
            EnergyRow(
                sig_id=signature.sig_id,
                op=signature.op,
                kernel=short_name(launch.name) if launch.name else "",
                class_=class_of_launch(launch.name, signature.op, launch.kind),
                count=counts[sig],
                trace_us=round(per_call.get(sig, 0.0), 4),
            )
        )
    return rows


class EnergyRow(msgspec.Struct, kw_only=True):
    """One distinct call. Joules per call; None if not known.

    measured is False if the power of another call stands in for its own.
    """

    sig_id: str
    op: str
    kernel: str
    class_: str = msgspec.field(name="class")
    count: int  # calls in the recorded run
    trace_us: float  # mean recorded GPU time of a call
    measured: bool = False
    gross_j: float | None = None
    net_j: float | None = None
    net_ci: tuple[float, float] | None = None
    watts: float | None = None
    wall_us: float | None = None  # per call while it was measured
    busy: float | None = None  # recorded GPU time over wall time
    ratio: float | None = None  # integral over counter
    method: str = "none"
    windows: int = 0
    run_net_j: float | None = None  # count * net_j
    flags: list[str] = []


class ModelEnergy(msgspec.Struct, kw_only=True):
    """The model's own runs, means over windows; None if that way of measuring is not available."""

    subject: str = msgspec.field(name="what")  # what ran
    runs: float
    wall_s: float  # of one run
    counter_j: float | None  # of one run
    integral_j: float | None
    j_per_run: float | None
    ci_j: tuple[float, float] | None
    j_per_forward: float | None
    j_per_token: float | None
    net_j_per_run: float | None
    forwards: int
    tokens: int


class EnergyClosure(msgspec.Struct, kw_only=True):
    """Parts against the whole, per run, every factor by name."""

    sum_net_j: float  # sum of count * net over all calls
    measured_share: float  # of sum_net_j: measured, not from stand-ins
    idle_w: float
    wall_s: float
    idle_j: float  # idle_w * wall_s
    predicted_j: float
    measured_j: float
    measured_net_j: float
    total_pct: float  # predicted over measured, percent off
    net_pct: float  # sum of nets over the run's net, percent off
    net_error_pct: float | None  # 95 % error of net_pct, points; None where it is not known
    idle_watt_pct: float  # one watt of idle power in percent of the run's net: the precision of net_pct


class EnergyResult(msgspec.Struct, kw_only=True):
    """energy.json."""

    device_name: str
    meter: str
    method: str
    idle_cold_w: float | None
    idle_context_w: float | None  # the one subtracted for net energy
    idle_before_w: float | None  # with a context, before any load
    update_period_s: float | None
    power_limit_w: float | None
    facts_before: dict[str, Any]
    facts_after: dict[str, Any]
    rows: list[EnergyRow]
    by_class: dict[str, float]
    model: ModelEnergy | None
    closure: EnergyClosure | None
    uncovered_us: float
    refused: list[str]
    lacks: list[str] = []  # what was to be measured and has no energy, beside the rows
    notes: list[str]
    bars: dict[str, bool | None]
