"""Audits of a log of power samples."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.core.words import plural
from lab.rooms.kernels.audit.check import Check, make_check, power_limit_checks
from lab.rooms.kernels.audit.files import as_float, csv_rows, seconds_of


@dataclass(frozen=True)
class Span:
    """When something was measured, in seconds since the epoch."""

    name: str
    start_s: float
    end_s: float


def of_power_log(path: Path, spans: Sequence[Span], board_limit_w: float | None) -> list[Check]:
    """Invalid readings, the limit, idle power, and whether the log covers the measurements."""
    rows = csv_rows(path, ("timestamp", "power_w"))
    watts = [as_float(row["power_w"]) for row in rows]
    valid = sorted(power for power in watts if power is not None and power > 0)
    invalid = len(rows) - len(valid)
    what = f"{plural(len(rows), 'sample')}, {invalid} of them 0 W or not a number"
    check = make_check(
        f"{path.name}: readings", invalid > 0 or not valid, what, samples=len(rows), none=invalid
    )
    if not valid:
        return [check]
    times = [seconds_of(row["timestamp"]) for row in rows]
    return [
        check,
        *power_limit_checks(path.name, valid[-1], board_limit_w),
        _idle(path.name, valid, times),
        *(_covers(path.name, span, times[0], times[-1]) for span in spans),
    ]


def _idle(name: str, watts: Sequence[float], times: Sequence[float]) -> Check:
    """Idle power is the median of the lowest twentieth of the sorted `watts`."""
    idle_w = statistics.median(watts[: max(1, len(watts) // 20)])
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    period_ms = round(1e3 * statistics.median(gaps), 1) if gaps else 0
    what = f"idle {idle_w:.1f} W, peak {watts[-1]:.1f} W: joules are gross unless idle is subtracted"
    return make_check(
        f"{name}: idle", False, what, idle_w=round(idle_w, 1), peak_w=watts[-1], period_ms=period_ms
    )


def _covers(name: str, span: Span, first_s: float, last_s: float) -> Check:
    what = f"the log covers {span.name}"
    if span.start_s > last_s:
        what = (
            f"the log ends {_duration(span.start_s - last_s)} before {span.name}: it cannot have measured it"
        )
    elif span.end_s < first_s:
        what = (
            f"the log begins {_duration(first_s - span.end_s)} after {span.name}: it cannot have measured it"
        )
    apart = span.start_s > last_s or span.end_s < first_s
    return make_check(f"{name}: on during {span.name}", apart, what)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds > 120 else f"{seconds:.0f} s"
