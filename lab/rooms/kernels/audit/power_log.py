"""Audits of a log of power samples, and of published joules against the log's own integral."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.core.words import plural
from lab.errors import BadDataError
from lab.power.energy import Energy, energy_of, valid_readings
from lab.power.readings import Readings, read_power_log
from lab.rooms.kernels.audit.check import Check, make_check, power_limit_checks

# Published joules may leave the log's bounds by this share: their clocks' edges and their rounding.
JOULES_SLACK = 0.02


@dataclass(frozen=True)
class PublishedRun:
    """When something was measured, s as `readings.seconds_of` reads times, and its joules, idle included."""

    name: str
    start_s: float
    end_s: float
    energy_j: float | None = None


def of_power_log(path: Path, runs: Sequence[PublishedRun], board_limit_w: float | None) -> list[Check]:
    """Check a log's readings, the board's limit, that it covers the runs, and their published joules."""
    try:
        series = read_power_log(path)
    except BadDataError as error:
        return [make_check(f"{path.name}: readings", True, f"cannot be read: {error.problem}")]
    checks = [_readings_check(path.name, readings, board_limit_w) for readings in series.values()]
    return [check for group in checks for check in group] + [
        check for run in runs for check in _run_checks(path.name, list(series.values()), run)
    ]


def _readings_check(name: str, readings: Readings, board_limit_w: float | None) -> list[Check]:
    _, watts = valid_readings(readings.t_s, readings.power_w)
    missing = len(readings.power_w) - len(watts)
    what = f"{plural(len(readings.power_w), 'sample')}, {missing} of them 0 W or not a number"
    label = f"{name}, GPU {readings.gpu}" if readings.gpu else name
    refused = missing > 0 or not watts
    check = make_check(f"{label}: readings", refused, what, samples=len(readings.power_w), none=missing)
    return [check, *power_limit_checks(label, max(watts, default=0.0), board_limit_w)]


def _run_checks(name: str, series: Sequence[Readings], run: PublishedRun) -> list[Check]:
    """Integrate the log over one run, all GPUs together, and compare the published joules with its bounds."""
    energies = [energy_of(readings, run.start_s, run.end_s, idle_w=0.0) for readings in series]
    problems = [problem for energy in energies for problem in energy.problems]
    covered = make_check(
        f"{name}: on during {run.name}",
        bool(problems),
        problems[0] if problems else f"the log covers {run.name}",
    )
    if problems or run.energy_j is None:
        return [covered]
    gross_j, low_j, high_j = (_sum(energies, field) for field in ("gross_j", "gross_low_j", "gross_high_j"))
    slack_j = JOULES_SLACK * gross_j
    return [
        covered,
        make_check(
            f"{name}: joules of {run.name}",
            not low_j - slack_j <= run.energy_j <= high_j + slack_j,
            f"published {run.energy_j:.1f} J; the log holds {gross_j:.1f} J ({low_j:.1f} to {high_j:.1f})",
            published_j=run.energy_j,
            log_j=round(gross_j, 1),
        ),
    ]


def _sum(energies: Sequence[Energy], field: str) -> float:
    return math.fsum(getattr(energy, field) for energy in energies)
