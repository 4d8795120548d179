"""The rows of energy.json: joules of each distinct call, measured or by a stand-in."""

from __future__ import annotations

import statistics
from collections import Counter

from lab.recordings.names import kernel_class, short_name
from lab.rooms.kernels.energy.choice import RawEnergy, SignatureEnergy, per_call_us
from lab.rooms.kernels.energy.result import EnergyRow
from lab.rooms.kernels.replay.args import Launch, ReplayPlan
from lab.stats.means import mean_interval

BUSY = 0.95  # below it a row says launch-bound
AGREE = (0.9, 1.1)  # integral over counter
LIMIT_SLACK = 1.05


def rows_of(plan: ReplayPlan, raw: RawEnergy, idle_w: float | None, limit: float | None) -> list[EnergyRow]:
    """One row per signature that was measured or has a stand-in, most energy first."""
    blank = _blank_rows(plan)
    measured = {one.place: _measured(blank[one.place], one, idle_w, limit) for one in raw.signatures}
    stood_for = [_stood_for(blank[sig], measured.get(other)) for sig, other in raw.stands_for.items()]
    return sorted([*measured.values(), *stood_for], key=lambda row: -(row.run_net_j or 0.0))


def _measured(row: EnergyRow, one: SignatureEnergy, idle_w: float | None, limit: float | None) -> EnergyRow:
    """The row with the means over its windows."""
    good = [w for w in one.windows if w.energy_j is not None and w.launches > 0]
    gross = [w.energy_j / w.launches for w in good if w.energy_j is not None]
    wall_us = [1e6 * w.seconds / w.launches for w in good]
    row.measured, row.windows = True, len(good)
    if good:
        row.gross_j, row.wall_us = statistics.fmean(gross), statistics.median(wall_us)
        row.busy = row.trace_us / row.wall_us
        row.watts = statistics.fmean(w.energy_j / w.seconds for w in good if w.energy_j is not None)
        row.method = good[0].method
    if any(w.ratio for w in good):
        row.ratio = statistics.fmean([w.ratio for w in good if w.ratio is not None])
    if good and idle_w is not None:
        net = [g - idle_w * us * 1e-6 for g, us in zip(gross, wall_us, strict=True)]
        row.net_j, low, high = mean_interval(net)
        row.net_ci = (low, high) if len(net) > 1 else None
        row.run_net_j = row.count * row.net_j
    row.flags = _flags(one, row, limit)
    return row


def _flags(one: SignatureEnergy, row: EnergyRow, limit: float | None) -> list[str]:
    flags = [one.reason] if one.reason else [w.reason for w in one.windows if w.reason][:1]
    if row.busy is not None and row.busy < BUSY:
        queued = "" if one.captured else ", queued without a graph"
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


def _stood_for(row: EnergyRow, other: EnergyRow | None) -> EnergyRow:
    """The row with the net power of `other`, times its own recorded time."""
    if other is None or other.net_j is None:
        row.flags = ["its stand-in has no energy"]
        return row
    row.net_j = other.net_j * row.trace_us / other.trace_us
    row.run_net_j = row.count * row.net_j
    row.method = "power of " + other.sig_id
    row.flags = [f"not measured: net power of {other.op} ({other.kernel[:40]}) times its own time"]
    return row


def _blank_rows(plan: ReplayPlan) -> list[EnergyRow]:
    """One row per signature, with what the recording says of it."""
    per_call, counts = per_call_us(plan), Counter(call.sig for call in plan.calls)
    return [
        EnergyRow(
            sig_id=signature.sig_id,
            op=signature.op,
            kernel=short_name(first.name) if first else "",
            class_=_class(first),
            count=counts[sig],
            trace_us=round(per_call.get(sig, 0.0), 4),
        )
        for sig, (signature, first) in enumerate(zip(plan.signatures, _main_launches(plan), strict=True))
    ]


def _class(launch: Launch | None) -> str:
    if launch is None:
        return "cpu_op"
    return kernel_class(launch.name) if launch.kind == "kernel" else launch.kind


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
