"""Audits of an energy run."""

from __future__ import annotations

from lab.core.words import plural
from lab.rooms.kernels.audit.check import REFUSED, Check, make_check
from lab.rooms.kernels.energy.choice import RawEnergy, windows_of
from lab.rooms.kernels.energy.result import EnergyClosure, EnergyResult, EnergyRow
from lab.rooms.kernels.energy.rows import BUSY
from lab.rooms.kernels.energy.windows import FEWEST_UPDATES

CLOSURE_PCT = 10


def of_energy(result: EnergyResult, raw: RawEnergy | None) -> list[Check]:
    """Limit, sensor updates, busy time, and the closure with every factor."""
    measured = [row for row in result.rows if row.measured]
    checks = [make_check("energy", True, why) for why in result.refused]
    checks.append(_possible_power(measured))
    if raw is not None:
        checks.append(_enough_updates(raw))
    checks.append(_busy(measured))
    if result.closure is not None:
        checks.append(_closure(result.closure))
    return checks


def _possible_power(measured: list[EnergyRow]) -> Check:
    over = sum(any(flag.startswith(REFUSED) for flag in row.flags) for row in measured)
    calls = plural(len(measured), "measured call")
    what = f"{over} of {calls} have an impossible power or energy" if over else calls
    return make_check("power within the board's limit", over > 0, what, rows=len(measured), over=over)


def _enough_updates(raw: RawEnergy) -> Check:
    windows = windows_of(raw)
    few = sum(one.updates < FEWEST_UPDATES for one in windows)
    what = f"{few:,} of {plural(len(windows), 'window')} with fewer than {FEWEST_UPDATES} sensor updates"
    return make_check("sensor updates", few > 0, what, windows=len(windows), few=few)


def _busy(measured: list[EnergyRow]) -> Check:
    """A call that left the GPU idle must say that it is launch-bound."""
    idle = [row for row in measured if row.busy is not None and row.busy < BUSY]
    unlabelled = sum(not any("launch-bound" in flag for flag in row.flags) for row in idle)
    what = f"{plural(unlabelled, 'call')} left the GPU idle without a label"
    return make_check("busy or labelled", unlabelled > 0, what)


def _closure(closure: EnergyClosure) -> Check:
    refused = not (abs(closure.total_pct) <= CLOSURE_PCT and abs(closure.net_pct) <= CLOSURE_PCT)
    what = (
        f"kernels {closure.sum_net_j:.3f} J + idle {closure.idle_w:.1f} W * {closure.wall_s:.4f} s = "
        f"{closure.predicted_j:.3f} J against {closure.measured_j:.3f} J "
        f"({closure.total_pct:+.1f} %; net {closure.net_pct:+.1f} %)"
    )
    factors = {name: round(getattr(closure, name), 6) for name in closure.__struct_fields__}
    return make_check("closure", refused, what, **factors)
