"""The rows of energy.json: joules of each distinct call, measured or by a stand-in."""

from __future__ import annotations

import statistics
from collections import Counter

from lab.perfmodel.classes import class_of_launch
from lab.power.windows import watts
from lab.recordings.names import short_name
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
