"""From windows to joules per launch, per token, and to the whole: does the sum of the parts meet the meter?

Gross is what the meter counted per launch; net takes off the idle power with a context for the time that passed.
Closure: sum(count * net) + idle power * wall time of the model's run, against the meter over that same run. Every
factor is printed, because two faults can cancel.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from lab.core.files import write_atomic
from lab.recordings.names import kernel_class, short_name
from lab.rooms.kernels.energy.choice import RawEnergy, RunEnergy, SignatureEnergy, per_call_us, recorded_us
from lab.rooms.kernels.energy.windows import Window, mean_ci
from lab.rooms.kernels.replay.args import Launch, ReplayPlan
from lab.rooms.kernels.replay.proof import PLAN_FILE, ReplayFindings, nothing_done, read_file

CONFIG_FILE, RAW_FILE = "energy_config.json", "energy/energy_raw.json"
RESULT, TABLE = "energy.json", "tables/energy.csv"
CLOSURE_BAR = 10.0  # percent
BUSY = 0.95
AGREE = (0.9, 1.1)
LIMIT_SLACK = 1.05


class EnergyRow(msgspec.Struct, kw_only=True):
    """One distinct call. Joules per call; measured is False where another call's power stands for it."""

    sig_id: str
    op: str
    kernel: str
    class_: str = msgspec.field(name="class")
    count: int  # calls in the recorded run
    trace_us: float  # mean recorded GPU time of a call
    measured: bool
    gross_j: float | None
    net_j: float | None
    net_ci: tuple[float, float] | None
    watts: float | None
    wall_us: float | None  # per call while it was measured
    busy: float | None  # recorded GPU time over wall time
    ratio: float | None  # integral over counter
    method: str
    windows: int
    run_net_j: float | None  # count * net_j
    flags: list[str]


class ModelEnergy(msgspec.Struct, kw_only=True):
    """The model's own runs, means over windows; None where that way of measuring is not there."""

    what: str
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
    measured_share: float  # of sum_net_j that was measured, not stood for
    idle_w: float
    wall_s: float
    idle_j: float  # idle_w * wall_s
    predicted_j: float
    measured_j: float
    measured_net_j: float
    total_pct: float  # predicted over measured, percent off
    net_pct: float  # sum of nets over the run's net, percent off
    idle_watt_pct: (
        float  # how many percent of the run's net one watt of idle power is: net closure is known no better
    )


class EnergyResult(msgspec.Struct, kw_only=True):
    """energy.json."""

    device_name: str
    meter: str
    method: str
    idle_cold_w: float | None
    idle_context_w: float | None  # the one that is taken off
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
    notes: list[str]
    bars: dict[str, bool | None]


def is_energy(folder: Path) -> bool:
    """Whether `folder` is a run of `lab run kernels energy`."""
    return (folder / CONFIG_FILE).is_file() and (folder / PLAN_FILE).is_file()


def analyse_energy(folder: Path, out: Path) -> ReplayFindings:
    """Judge the measurement in `folder`; write energy.json and tables/energy.csv into `out`."""
    if not (folder / RAW_FILE).is_file():
        return nothing_done("no window was measured", folder / RAW_FILE)
    plan = read_file(folder / PLAN_FILE, ReplayPlan)
    raw = read_file(folder / RAW_FILE, RawEnergy)
    result = judge(plan, raw)
    write_atomic(out / RESULT, msgspec.json.format(msgspec.json.encode(result), indent=1))
    write_atomic(out / TABLE, table_text(result.rows))
    return ReplayFindings(
        verdict=verdict(result),
        status=status(result),
        files=[out / RESULT, out / TABLE],
        terminal=terminal(result),
        lacking=lacking(result),
    )


def judge(plan: ReplayPlan, raw: RawEnergy) -> EnergyResult:
    """All arithmetic of one measurement. Pure."""
    idle_w = idle_power(raw)
    limit = raw.facts_before.get("power_limit_w")
    rows = _rows(plan, raw, idle_w, limit)
    model = _model(plan, raw.model, idle_w)
    ran = {row.sig_id for row in rows if row.net_j is not None}
    by_class: dict[str, float] = defaultdict(float)
    for row in rows:
        by_class[row.class_] += row.run_net_j or 0.0
    result = EnergyResult(
        device_name=raw.device_name,
        meter=raw.meter,
        method=_method(raw),
        idle_cold_w=_power(raw.idle_cold),
        idle_context_w=idle_w,
        idle_before_w=_power(raw.idle_context),
        update_period_s=raw.update_period_s,
        power_limit_w=limit,
        facts_before=raw.facts_before,
        facts_after=raw.facts_after,
        rows=rows,
        by_class={name: round(j, 6) for name, j in sorted(by_class.items(), key=lambda item: -item[1])},
        model=model,
        closure=_closure(rows, model, idle_w),
        refused=_refused(raw, limit),
        notes=list(raw.notes),
        bars={},
        uncovered_us=sum(o.dur_us for o in plan.orphans)
        + sum(us for place, us in recorded_us(plan).items() if plan.signatures[place].sig_id not in ran),
    )
    closed = result.closure
    result.bars = {
        "closure": None if closed is None else abs(closed.total_pct) <= CLOSURE_BAR,
        "net_closure": None if closed is None else abs(closed.net_pct) <= CLOSURE_BAR,
    }
    return result


def idle_power(raw: RawEnergy) -> float | None:
    """Idle power with a context: beside the model's windows where it was measured there, else before all of them.

    A card that has worked is warmer and leaks more than one that has not; the idle power to take off is the warm one.
    """
    beside = [watts for one in raw.idle_between if (watts := _power(one)) is not None]
    return statistics.fmean(beside) if beside else _power(raw.idle_context)


def _rows(plan: ReplayPlan, raw: RawEnergy, idle_w: float | None, limit: float | None) -> list[EnergyRow]:
    blank = _blank_rows(plan)
    measured = {one.place: _measured(blank[one.place], one, idle_w, limit) for one in raw.signatures}
    stood_for = [_stood_for(blank[place], measured.get(other)) for place, other in raw.stands_for.items()]
    return sorted([*measured.values(), *stood_for], key=lambda row: -(row.run_net_j or 0.0))


def _measured(row: EnergyRow, one: SignatureEnergy, idle_w: float | None, limit: float | None) -> EnergyRow:
    """The row with what its windows say."""
    good = [w for w in one.windows if w.energy_j is not None and w.launches > 0]
    gross = [w.energy_j / w.launches for w in good if w.energy_j is not None]
    wall_us = [1e6 * w.seconds / w.launches for w in good]
    net = (
        [g - (idle_w or 0.0) * us * 1e-6 for g, us in zip(gross, wall_us, strict=True)]
        if idle_w is not None
        else []
    )
    mean, low, high = mean_ci(net)
    power = statistics.fmean(w.energy_j / w.seconds for w in good if w.energy_j is not None) if good else None
    busy = row.trace_us / statistics.median(wall_us) if wall_us else None
    row.measured, row.windows, row.busy, row.watts = True, len(good), busy, power
    row.gross_j, row.wall_us = (statistics.fmean(gross), statistics.median(wall_us)) if good else (None, None)
    row.net_j = mean if net else None
    row.net_ci = (low, high) if len(net) > 1 else None
    row.ratio = (
        statistics.fmean([w.ratio for w in good if w.ratio is not None])
        if any(w.ratio for w in good)
        else None
    )
    row.method = good[0].method if good else "none"
    row.run_net_j = row.count * mean if net else None
    row.flags = _flags(one, row, limit)
    return row


def _flags(one: SignatureEnergy, row: EnergyRow, limit: float | None) -> list[str]:
    flags = [one.reason] if one.reason else [w.reason for w in one.windows if w.reason][:1]
    if row.busy is not None and row.busy < BUSY:
        flags.append(
            f"launch-bound: kernels fill {100 * row.busy:.0f} % of the time"
            + ("" if one.captured else ", queued without a graph")
        )
    if row.ratio is not None and not AGREE[0] <= row.ratio <= AGREE[1]:
        flags.append(f"the sensors disagree: integral over counter {row.ratio:.2f}")
    if limit and row.watts and row.watts > limit * LIMIT_SLACK:
        flags.append(f"REFUSED: {row.watts:.0f} W above the board's limit of {limit:.0f} W")
    if row.op.endswith("_") and row.op != "aten::copy_":
        flags.append("in place: its data drift while it repeats")
    if row.net_j is not None and row.net_j < 0:
        flags.append("REFUSED: net energy below zero")
    return flags


def _stood_for(row: EnergyRow, other: EnergyRow | None) -> EnergyRow:
    """The row with the power of another one that was measured."""
    if other is None or other.net_j is None:
        row.flags = ["its stand-in has no energy"]
        return row
    row.net_j = other.net_j * row.trace_us / other.trace_us
    row.run_net_j = row.count * row.net_j
    row.method = "power of " + other.sig_id
    row.flags = [f"not measured: net power of {other.op} ({other.kernel[:40]}) times its own time"]
    return row


def _blank_rows(plan: ReplayPlan) -> list[EnergyRow]:
    """A row a signature, with what the recording says of it."""
    per_call, counts = per_call_us(plan), Counter(call.sig for call in plan.calls)
    return [
        EnergyRow(
            sig_id=signature.sig_id,
            op=signature.op,
            kernel=short_name(first.name) if first else "",
            class_="cpu_op"
            if first is None
            else kernel_class(first.name)
            if first.kind == "kernel"
            else first.kind,
            count=counts[place],
            trace_us=round(per_call.get(place, 0.0), 4),
            measured=False,
            gross_j=None,
            net_j=None,
            net_ci=None,
            watts=None,
            wall_us=None,
            busy=None,
            ratio=None,
            method="none",
            windows=0,
            run_net_j=None,
            flags=[],
        )
        for place, (signature, first) in enumerate(zip(plan.signatures, _main_launches(plan), strict=True))
    ]


def _main_launches(plan: ReplayPlan) -> list[Launch | None]:
    """The launch of each signature that took longest: a GEMM, not the fill before it."""
    sums = [[0.0] * len(signature.launches) for signature in plan.signatures]
    for call in plan.calls:
        for position, us in enumerate(call.dur_us[: len(sums[call.sig])]):
            sums[call.sig][position] += us
    return [
        one.launches[times.index(max(times))] if times else None
        for one, times in zip(plan.signatures, sums, strict=True)
    ]


def _model(plan: ReplayPlan, runs: Sequence[RunEnergy], idle_w: float | None) -> ModelEnergy | None:
    good = [one for one in runs if one.window.launches > 0 and one.window.energy_j is not None]
    if not good:
        return None
    each = [one.window.energy_j / one.window.launches for one in good if one.window.energy_j is not None]
    wall = [one.window.seconds / one.window.launches for one in good]
    mean, low, high = mean_ci(each)
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


def _mean_per_run(runs: Sequence[RunEnergy], name: str) -> float | None:
    found = [
        getattr(one.window, name) / one.window.launches
        for one in runs
        if getattr(one.window, name) is not None
    ]
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
    """What makes the whole measurement unbelievable."""
    windows = [w for one in raw.signatures for w in one.windows] + [one.window for one in raw.model]
    found = []
    if limit and any((_power(w) or 0.0) > limit * LIMIT_SLACK for w in windows):
        found.append(f"a window lies above the board's limit of {limit:.0f} W")
    if _power(raw.idle_context) is None:
        found.append("idle power was not measured: nothing can be net")
    others = raw.facts_after.get("other_processes")
    if others:
        found.append(f"{others} other processes used the GPU at the end")
    return found


def _power(window: Window | None) -> float | None:
    return (
        None
        if window is None or window.energy_j is None or window.seconds <= 0
        else window.energy_j / window.seconds
    )


def _method(raw: RawEnergy) -> str:
    windows = [w for one in raw.signatures for w in one.windows] + [one.window for one in raw.model]
    return ", ".join(sorted({w.method for w in windows})) or "none"


def status(result: EnergyResult) -> str:
    if result.refused or not any(row.net_j is not None for row in result.rows):
        return "fail"
    return "warn" if False in result.bars.values() or result.uncovered_us > 0 else "ok"


def lacking(result: EnergyResult) -> list[str]:
    missing = [
        f"{row.op} ({row.sig_id}): {'; '.join(row.flags) or 'no window'}"
        for row in result.rows
        if row.net_j is None
    ]
    return [*(f"REFUSED: {why}" for why in result.refused), *missing]


def verdict(result: EnergyResult) -> list[str]:
    lines = []
    if (model := result.model) is not None and model.j_per_run is not None:
        both = f"counter {_j(model.counter_j)}, integral of power {_j(model.integral_j)}"
        lines.append(
            f"{model.what}: {model.j_per_run:.3f} J a run ({both}), {model.j_per_token or math.nan:.4f} J a token, "
            f"{1e3 * model.wall_s:.1f} ms"
        )
    if (closed := result.closure) is not None:
        lines.append(
            f"closure: kernels {closed.sum_net_j:.3f} J + idle {closed.idle_w:.1f} W * {closed.wall_s:.4f} s = "
            f"{closed.predicted_j:.3f} J, measured {closed.measured_j:.3f} J: {closed.total_pct:+.1f} %"
        )
        lines.append(
            f"net closure: {closed.sum_net_j:.3f} J of kernels against {closed.measured_net_j:.3f} J net of idle: "
            f"{closed.net_pct:+.1f} % ({100 * closed.measured_share:.0f} % of the sum measured, the rest by stand-ins; 1 W of idle power is {closed.idle_watt_pct:.1f} %)"
        )
    own = [row for row in result.rows if row.measured and row.net_j is not None]
    lines.append(
        f"{len(own)} distinct calls measured by {result.method}; idle {_w(result.idle_cold_w)} cold, "
        f"{_w(result.idle_before_w)} with a context, {_w(result.idle_context_w)} beside the runs"
    )
    return lines + [f"REFUSED: {why}" for why in result.refused]


def terminal(result: EnergyResult) -> str:
    lines = [
        f"energy on {result.device_name}, meter {result.meter}, limit {_w(result.power_limit_w)}, "
        f"sensor updates every {1e3 * (result.update_period_s or math.nan):.0f} ms",
        "",
    ]
    lines += [f"  {line}" for line in verdict(result)]
    lines += [
        f"  bar {name.replace('_', ' ')}: {'met' if met else 'NOT met'}"
        for name, met in result.bars.items()
        if met is not None
    ]
    lines += [
        "",
        f"  {'net mJ':>9} {'95 %':>8} {'gross mJ':>9} {'W':>6} {'busy':>5} {'i/c':>5} {'calls':>6} {'run J':>8}  op, kernel",
    ]
    lines += [_row_line(row) for row in result.rows[:16]]
    total = sum(result.by_class.values()) or math.nan
    lines += [
        "",
        "  net energy by class: "
        + ", ".join(f"{name} {100 * j / total:.1f} %" for name, j in result.by_class.items() if j),
    ]
    return "\n".join([*lines, *(f"note: {note}" for note in result.notes)])


def _row_line(row: EnergyRow) -> str:
    half = 1e3 * (row.net_ci[1] - row.net_ci[0]) / 2 if row.net_ci else math.nan
    cells = (
        f"{1e3 * (row.net_j if row.net_j is not None else math.nan):9.4f} {half:8.4f} "
        f"{1e3 * (row.gross_j if row.gross_j is not None else math.nan):9.4f} {row.watts or math.nan:6.0f} "
        f"{row.busy or math.nan:5.2f} {row.ratio or math.nan:5.2f} {row.count:6d} {row.run_net_j or math.nan:8.4f}"
    )
    return f"  {cells}  {row.op} {row.kernel[:44]}{'' if row.measured else ' (stand-in)'}"


def _w(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} W"


def _j(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f} J"


def table_text(rows: list[EnergyRow]) -> str:
    import csv
    import io

    names = list(EnergyRow.__struct_fields__)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["class" if name == "class_" else name for name in names])
    for row in rows:
        values = [getattr(row, name) for name in names]
        writer.writerow(
            [
                "" if v is None else "; ".join(map(str, v)) if isinstance(v, (list, tuple)) else v
                for v in values
            ]
        )
    return text.getvalue()
