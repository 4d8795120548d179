"""An energy run in sentences: the verdict, what is missing, and the text for the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from lab.core.words import first_few, plural
from lab.report.parts import Status
from lab.rooms.kernels.energy.evaluate import EnergyClosure, EnergyResult, EnergyRow, ModelEnergy

REFUSED = "REFUSED: "
NAMED = 3  # calls named per reason; all are in tables/energy.csv
HEAD = (
    f"  {'net mJ per call':>15} {'± 95 %':>8} {'gross mJ':>9} {'power W':>8} {'busy %':>7} {'calls':>6} "
    f"{'net J per run':>14}  call"
)


def verdict_sentences(result: EnergyResult) -> list[str]:
    """Joules of the model, the closure net of idle, what was measured, and what was refused."""
    lines = [] if result.model is None else _model_sentences(result.model)
    if result.closure is not None:
        lines += _closure_sentences(result.closure, result.bars.get("net_closure"))
    measured = sum(row.measured and row.net_j is not None for row in result.rows)
    lines.append(
        f"{plural(measured, 'distinct call')} measured by {result.method}; "
        f"idle {_watts(result.idle_cold_w)} cold, {_watts(result.idle_before_w)} with a context, "
        f"{_watts(result.idle_context_w)} between the runs"
    )
    return [*lines, *_refused(result)]


def _model_sentences(model: ModelEnergy) -> list[str]:
    if model.j_per_run is None:
        return []
    meters = f"counter {_joules(model.counter_j)}, integral of power {_joules(model.integral_j)}"
    per_token = "unknown" if model.j_per_token is None else f"{model.j_per_token:.4f}"
    return [
        f"{model.subject}: {model.j_per_run:.3f} J per run ({meters}), {per_token} J per token, "
        f"{1e3 * model.wall_s:.1f} ms"
    ]


def _closure_sentences(closure: EnergyClosure, closes: bool | None) -> list[str]:
    error = closure.net_error_pct
    width = "its error is not known" if error is None else f"± {error:.1f} % at 95 %"
    verdict = {True: "they add up", False: "they do NOT add up", None: "too inexact to tell"}[closes]
    idle_share = 100 * closure.idle_j / closure.measured_j if closure.measured_j else 0.0
    return [
        f"net closure: kernels {closure.sum_net_j:.3f} J, the run {closure.measured_net_j:.3f} J above idle: "
        f"{closure.net_pct:+.1f} % ({width}): {verdict}",
        f"gross: kernels {closure.sum_net_j:.3f} J + idle {closure.idle_w:.1f} W * {closure.wall_s:.4f} s = "
        f"{closure.predicted_j:.3f} J, measured {closure.measured_j:.3f} J ({closure.total_pct:+.1f} %), of "
        f"which {idle_share:.0f} % is idle; {100 * closure.measured_share:.0f} % of the kernels' energy was "
        f"measured, the rest is of stand-ins; 1 W of idle power is {closure.idle_watt_pct:.1f} % of the net",
    ]


def _refused(result: EnergyResult) -> list[str]:
    return [f"{REFUSED}{reason}" for reason in result.refused]


def status(result: EnergyResult) -> Status:
    if result.refused or not any(row.net_j is not None for row in result.rows):
        return "fail"
    closes = result.closure is None or result.bars.get("net_closure")
    return "ok" if closes and not result.uncovered_us and not missing_sentences(result) else "warn"


def missing_sentences(result: EnergyResult) -> list[str]:
    """What was refused, and the calls that have no energy."""
    reasons: dict[str, list[EnergyRow]] = defaultdict(list)
    for row in result.rows:
        if row.net_j is None:
            reasons[row.flags[0] if row.flags else "no window"].append(row)
    all_us = _time_us(result.rows)
    groups = sorted(reasons.items(), key=lambda item: -_time_us(item[1]))
    without = [_without(reason, rows, all_us) for reason, rows in groups]
    return [*_refused(result), *result.lacks, *without, *_impossible(result.rows)]


def _impossible(rows: Sequence[EnergyRow]) -> list[str]:
    """Calls whose figure cannot be, though it is part of every sum."""
    wrong = [(row, flag) for row in rows if row.net_j is not None for flag in row.flags if REFUSED in flag]
    if not wrong:
        return []
    calls = list(dict.fromkeys(f"{row.op} ({row.sig_id})" for row, _ in wrong))
    reason = wrong[0][1].removeprefix(REFUSED)
    calls_text = f"{plural(len(calls), 'distinct call')} with impossible energy, which the sums hold"
    return [f"{calls_text}: {reason}: {first_few(calls, limit=NAMED)}"]


def _time_us(rows: Sequence[EnergyRow]) -> float:
    return sum(row.count * row.trace_us for row in rows)


def _without(reason: str, rows: list[EnergyRow], all_us: float) -> str:
    """One reason: how many calls have no energy because of it, their share of the time, the longest three."""
    longest = sorted(rows, key=lambda row: -row.count * row.trace_us)
    names = ", ".join(f"{row.op} ({row.sig_id})" for row in longest[:NAMED])
    further = f" and {len(rows) - NAMED:,} more" if len(rows) > NAMED else ""
    share = f"{100 * _time_us(rows) / all_us:.1f} %" if all_us else "an unknown share"
    calls = plural(len(rows), "distinct call")
    return f"no energy for {calls}, {share} of the calls' recorded time: {reason}: {names}{further}"


def terminal(result: EnergyResult) -> str:
    """The verdict, the calls that cost most, and the energy by class."""
    period_s = result.update_period_s
    period = "at an unknown period" if period_s is None else f"every {1e3 * period_s:.0f} ms"
    total_j = sum(result.by_class.values())
    shares = ", ".join(f"{name} {100 * j / total_j:.1f} %" for name, j in result.by_class.items() if total_j)
    return "\n".join(
        [
            f"energy on {result.device_name}, meter {result.meter}, limit {_watts(result.power_limit_w)}, "
            f"sensor updates {period}",
            "",
            *(f"  {line}" for line in verdict_sentences(result)),
            "",
            HEAD,
            *(_row_line(row) for row in result.rows[:16]),
            "",
            f"  net energy by class: {shares or 'none'}",
            *(f"note: {note}" for note in result.notes),
        ]
    )


def _row_line(row: EnergyRow) -> str:
    half_j = (row.net_ci[1] - row.net_ci[0]) / 2 if row.net_ci else None
    busy = None if row.busy is None else 100 * row.busy
    cells = (
        f"{_cell(row.net_j, 1e3):>15} {_cell(half_j, 1e3):>8} {_cell(row.gross_j, 1e3):>9} "
        f"{_cell(row.watts, digits=0):>8} {_cell(busy, digits=0):>7} {row.count:>6} "
        f"{_cell(row.run_net_j):>14}"
    )
    return f"  {cells}  {row.op} {row.kernel[:44]}{'' if row.measured else ' (not measured: stand-in)'}"


def _cell(value: float | None, factor: float = 1.0, digits: int = 4) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"


def _watts(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} W"


def _joules(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f} J"
