"""Audits of a published measurement: kernel counts, isolated kernels, the model's own run, power logs.

The layout is that of the public seed (anuragdutt/piep_kernel_execution_graph).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.core.words import plural
from lab.power.readings import seconds_of
from lab.rooms.kernels.audit.check import Check, make_check, power_limit_checks
from lab.rooms.kernels.audit.counts import no_runtime_calls, valid_csv
from lab.rooms.kernels.audit.files import read_counts, read_object
from lab.rooms.kernels.audit.kernels import of_isolated
from lab.rooms.kernels.audit.power_log import PublishedRun, of_power_log
from lab.rooms.kernels.energy.windows import FEWEST_UPDATES


def of_published(folder: Path, board_limit_w: float | None) -> list[Check]:
    """All audits that the files of `folder` allow; empty if there are none."""
    checks: list[Check] = []
    counts = [row for path in sorted(folder.glob("*kernel_counts.csv")) for row in read_counts(path)]
    if counts:
        checks.append(no_runtime_calls(counts))
    checks += [valid_csv(path) for path in sorted(folder.glob("*unique_kernels*.csv"))]
    model = read_object(folder / "full_model_timing.json")
    isolated = read_object(folder / "isolated_kernels_timing.json")
    if isolated:
        checks += of_isolated(isolated, model)
    reports = {path.name: read_object(path) or {} for path in sorted(folder.glob("energy_report*.json"))}
    for name, report in reports.items():
        checks += of_energy_report(name, report, board_limit_w)
    if model:
        of_model = [(name, one) for name, one in reports.items() if "model" in name[len("energy_report") :]]
        checks += of_model_energy(model, of_model, board_limit_w)
    for path in sorted(folder.glob("*power*.csv")):
        checks += of_power_log(path, _runs(isolated, model), board_limit_w)
    return checks


def _runs(isolated: dict[str, Any] | None, model: dict[str, Any] | None) -> list[PublishedRun]:
    named = (("the model's run", model), ("the isolated kernels", isolated))
    return [
        PublishedRun(
            name,
            seconds_of(timing["start_timestamp"]),
            seconds_of(timing["end_timestamp"]),
            float(timing["energy_joules"]) if "energy_joules" in timing else None,
        )
        for name, timing in named
        if timing and "start_timestamp" in timing
    ]


def of_energy_report(name: str, report: dict[str, Any], board_limit_w: float | None) -> list[Check]:
    """Sensor updates, joules that were not measured, a single power reading, and the board's limit."""
    samples = int(report.get("num_power_samples", 0))
    joules = float(report.get("energy_joules", {}).get("total", 0.0))
    watts = report.get("power_watts", {})
    peak = watts.get("peak")
    duration = f"{report['duration_seconds']} s" if "duration_seconds" in report else "an unknown time"
    what = f"{plural(samples, 'power sample')} over {duration}; {FEWEST_UPDATES} are needed"
    checks = [make_check(f"{name}: sensor updates", samples < FEWEST_UPDATES, what, samples=samples)]
    if joules <= 0:
        what = f"{joules} J: nothing was measured, which is not the same as zero"
        checks.append(make_check(f"{name}: energy", True, what))
    if peak is not None and watts.get("min") == peak:
        what = f"lowest and highest power are both {peak} W: this is a single reading"
        checks.append(make_check(f"{name}: one power", True, what, watts=peak))
    return [*checks, *power_limit_checks(name, float(peak or 0), board_limit_w)]


def of_model_energy(
    model: dict[str, Any], reports: Sequence[tuple[str, dict[str, Any]]], board_limit_w: float | None
) -> list[Check]:
    """The model's joules: power within the board's limit, and the same energy per run in every file."""
    if "energy_joules" not in model:
        return []
    joules, seconds = float(model["energy_joules"]), _seconds(model)
    per_run, watts = joules / int(model["num_runs"]), joules / seconds
    power = make_check(
        "the model's power",
        False,
        f"{joules:.1f} J over {seconds:.2f} s are {watts:.0f} W, idle not subtracted",
        joules=joules,
        seconds=round(seconds, 3),
        watts=round(watts, 1),
        j_per_run=round(per_run, 4),
    )
    return [
        power,
        *power_limit_checks("full_model_timing.json", watts, board_limit_w),
        *(_same_energy(name, report, per_run) for name, report in reports),
    ]


def _seconds(model: dict[str, Any]) -> float:
    return seconds_of(model["end_timestamp"]) - seconds_of(model["start_timestamp"])


def _same_energy(name: str, report: dict[str, Any], per_run_j: float) -> Check:
    other_j = float(report.get("energy_joules", {}).get("per_run", math.nan))
    refused = not abs(other_j / per_run_j - 1) <= 0.1  # NaN is refused too
    what = f"{per_run_j:.3f} J per run in full_model_timing.json, {other_j:.3f} J in {name}"
    if math.isnan(other_j):
        what = f"{per_run_j:.3f} J per run in full_model_timing.json, no energy per run in {name}"
    factors = {"timing_j": round(per_run_j, 4), "report_j": round(other_j, 4)}
    return make_check("one energy per run", refused, what, **factors)
