"""An energy run in sentences: the verdict, what is missing, and the text for the terminal."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from lab.core.words import first_few, plural
from lab.report.parts import Status
from lab.rooms.kernels.energy.result import EnergyClosure, EnergyResult, EnergyRow, ModelEnergy

REFUSED = "REFUSED: "
NAMED = 3  # calls named per reason; all are in tables/energy.csv
HEAD = (
    f"  {'net mJ':>9} {'95 %':>8} {'gross mJ':>9} {'W':>6} {'busy':>5} {'i/c':>5} {'calls':>6} {'run J':>8}  "
    "op, kernel"
)


def verdict_sentences(result: EnergyResult) -> list[str]:
    """Joules of the model, the two closures, what was measured, and what was refused."""
    lines = [] if result.model is None else _model_sentences(result.model)
    lines += [] if result.closure is None else _closure_sentences(result.closure)
    own = sum(row.measured and row.net_j is not None for row in result.rows)
    lines.append(
        f"{plural(own, 'distinct call')} measured by {result.method}; "
        f"idle {_watts(result.idle_cold_w)} cold, {_watts(result.idle_before_w)} with a context, "
        f"{_watts(result.idle_context_w)} between the runs"
    )
    return [*lines, *_refused(result)]


def _model_sentences(model: ModelEnergy) -> list[str]:
    if model.j_per_run is None:
        return []
    both = f"counter {_joules(model.counter_j)}, integral of power {_joules(model.integral_j)}"
    per_token = "unknown" if model.j_per_token is None else f"{model.j_per_token:.4f}"
    return [
        f"{model.what}: {model.j_per_run:.3f} J per run ({both}), {per_token} J per token, "
        f"{1e3 * model.wall_s:.1f} ms"
    ]


def _closure_sentences(closure: EnergyClosure) -> list[str]:
    return [
        f"closure: kernels {closure.sum_net_j:.3f} J + idle {closure.idle_w:.1f} W * {closure.wall_s:.4f} s "
        f"= {closure.predicted_j:.3f} J, measured {closure.measured_j:.3f} J: {closure.total_pct:+.1f} %",
        f"net closure: {closure.sum_net_j:.3f} J of kernels, {closure.measured_net_j:.3f} J measured net of "
        f"idle: {closure.net_pct:+.1f} % ({100 * closure.measured_share:.0f} % of the sum measured, the rest "
        f"from stand-ins; 1 W of idle power changes it by {closure.idle_watt_pct:.1f} %)",
    ]


def _refused(result: EnergyResult) -> list[str]:
    return [f"{REFUSED}{why}" for why in result.refused]


def status(result: EnergyResult) -> Status:
    if result.refused or not any(row.net_j is not None for row in result.rows):
        return "fail"
    bad = False in result.bars.values() or result.uncovered_us > 0 or missing_sentences(result)
    return "warn" if bad else "ok"


def missing_sentences(result: EnergyResult) -> list[str]:
    """What was refused, and the calls that have no energy."""
    reasons: dict[str, list[EnergyRow]] = defaultdict(list)
    for row in result.rows:
        if row.net_j is None:
            reasons[row.flags[0] if row.flags else "no window"].append(row)
    all_us = sum(row.count * row.trace_us for row in result.rows)
    groups = sorted(reasons.items(), key=lambda item: -_time_us(item[1]))
    without = [_without(why, rows, all_us) for why, rows in groups]
    return [*_refused(result), *result.lacks, *without, *_impossible(result.rows)]


def _impossible(rows: Sequence[EnergyRow]) -> list[str]:
    """Calls whose figure cannot be, though it is part of every sum."""
    wrong = [row for row in rows if row.net_j is not None and any(map(_is_refusal, row.flags))]
    if not wrong:
        return []
    names = first_few([f"{row.op} ({row.sig_id})" for row in wrong], limit=NAMED)
    why = next(flag for flag in wrong[0].flags if _is_refusal(flag)).removeprefix(REFUSED)
    return [
        f"{plural(len(wrong), 'distinct call')} with impossible energy, which the sums hold: {why}: {names}"
    ]


def _is_refusal(flag: str) -> bool:
    return flag.startswith(REFUSED)


def _time_us(rows: list[EnergyRow]) -> float:
    return sum(row.count * row.trace_us for row in rows)


def _without(why: str, rows: list[EnergyRow], all_us: float) -> str:
    """One reason: how many calls have no energy because of it, their share of the time, the longest three."""
    longest = sorted(rows, key=lambda row: -row.count * row.trace_us)
    names = ", ".join(f"{row.op} ({row.sig_id})" for row in longest[:NAMED])
    more = f" and {len(rows) - NAMED:,} more" if len(rows) > NAMED else ""
    share = f"{100 * _time_us(rows) / all_us:.1f} %" if all_us else "an unknown share"
    calls = plural(len(rows), "distinct call")
    return f"no energy for {calls}, {share} of the calls' recorded time: {why}: {names}{more}"


def terminal(result: EnergyResult) -> str:
    """The verdict, the bars, the calls that cost most, and the energy by class."""
    period_s = result.update_period_s
    period = "at an unknown period" if period_s is None else f"every {1e3 * period_s:.0f} ms"
    lines = [
        f"energy on {result.device_name}, meter {result.meter}, limit {_watts(result.power_limit_w)}, "
        f"sensor updates {period}",
        "",
        *(f"  {line}" for line in verdict_sentences(result)),
    ]
    lines += [
        f"  bar {name.replace('_', ' ')}: {'met' if met else 'NOT met'}"
        for name, met in result.bars.items()
        if met is not None
    ]
    lines += ["", HEAD, *(_row_line(row) for row in result.rows[:16])]
    total = sum(result.by_class.values()) or math.nan
    shares = ", ".join(f"{name} {100 * j / total:.1f} %" for name, j in result.by_class.items() if j)
    lines += ["", f"  net energy by class: {shares or 'none'}"]
    return "\n".join([*lines, *(f"note: {note}" for note in result.notes)])


def _row_line(row: EnergyRow) -> str:
    half_mj = 1e3 * (row.net_ci[1] - row.net_ci[0]) / 2 if row.net_ci else math.nan
    cells = (
        f"{_millis(row.net_j):9.4f} {half_mj:8.4f} {_millis(row.gross_j):9.4f} {row.watts or math.nan:6.0f} "
        f"{row.busy or math.nan:5.2f} {row.ratio or math.nan:5.2f} {row.count:6d} "
        f"{row.run_net_j or math.nan:8.4f}"
    )
    return f"  {cells}  {row.op} {row.kernel[:44]}{'' if row.measured else ' (stand-in)'}"


def _millis(value: float | None) -> float:
    return math.nan if value is None else 1e3 * value


def _watts(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} W"


def _joules(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f} J"
