"""Audits of a published measurement, in the layout of anuragdutt/piep_kernel_execution_graph.

Two faults can cancel, so every factor of a product is named: a sum that looks right proves nothing.
"""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

from lab.errors import BadDataError
from lab.power.energy import published_energy, valid_readings
from lab.power.readings import read_power_log, seconds_of
from lab.rooms.kernels.audit.check import Check, above_limit, make_check
from lab.rooms.kernels.audit.isolated import of_isolated, seconds_between

RUNTIME_CALL = re.compile(r"(cuda|hip|cu)[A-Z]\w*\Z")  # one word with a capital after the API's prefix
FEWEST_SAMPLES = 20
SAME_ENERGY = 0.1


def of_published(folder: Path, limit_w: float | None) -> list[Check]:
    """All audits that the files of `folder` allow; empty if there are none. Raises BadDataError."""
    checks = [_counts(path) for path in sorted(folder.glob("*kernel_counts.csv"))]
    checks += [_valid_csv(path) for path in sorted(folder.glob("*unique_kernels*.csv"))]
    model, isolated = (_object(folder / f"{name}_timing.json") for name in ("full_model", "isolated_kernels"))
    if isolated:
        checks += of_isolated(isolated["kernels"], float(model.get("full_model_inference_us", 0)))
    for path in sorted(folder.glob("energy_report*.json")):
        checks += _report(path.name, _object(path), model, limit_w)
    if "energy_joules" in model:
        watts = float(model["energy_joules"]) / seconds_between(model)
        checks.append(
            make_check("the model's power", False, f"{watts:.0f} W, idle not subtracted", watts=watts)
        )
        checks += above_limit("full_model_timing.json", watts, limit_w)
    runs = {"the model's run": model, "the isolated kernels": isolated}
    for path in sorted(folder.glob("*power*.csv")):
        checks += _power_log(
            path, {name: run for name, run in runs.items() if "end_timestamp" in run}, limit_w
        )
    return checks


def _object(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes())) if path.is_file() else {}
    except (ValueError, TypeError) as error:
        raise BadDataError(f"not JSON: {error}", location=path) from error


def _csv_rows(path: Path) -> list[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file)) or [[]]
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadDataError(f"not a CSV file: {error}", location=path) from error


def _counts(path: Path) -> Check:
    """Counts of kernels must not include calls of the CUDA or HIP runtime."""
    header, *rows = _csv_rows(path)
    try:
        name, count = header.index("kernel_name"), header.index("count")
        counts = [(RUNTIME_CALL.match(row[name].strip()), int(row[count])) for row in rows]
    except (ValueError, IndexError) as error:
        raise BadDataError(
            f"no column of kernel_name or count, or not a count: {error}", location=path
        ) from error
    counted, calls = sum(n for _, n in counts), sum(n for is_call, n in counts if is_call)
    answer = (
        f"{calls:,} of {counted:,} are runtime calls on the host, which leaves {counted - calls:,} launches"
    )
    factors = {"counted": counted, "runtime_calls": calls, "launches": counted - calls}
    return make_check("counts are of kernels", calls > 0, answer, **factors)


def _valid_csv(path: Path) -> Check:
    header, *rows = _csv_rows(path)
    torn = sum(len(row) != len(header) or '\\"' in "".join(row) or "\\" in "".join(row)[-1:] for row in rows)
    answer = f"{torn:,} of {len(rows):,} rows torn: CSV does not allow a quote escaped by a backslash"
    return make_check(f"{path.name} is CSV", torn > 0, answer, rows=len(rows), torn=torn)


def _report(name: str, report: dict[str, Any], model: dict[str, Any], limit_w: float | None) -> list[Check]:
    """Samples, joules that were not measured, a single reading, and the same energy per run everywhere."""
    samples, watts = int(report.get("num_power_samples", 0)), report.get("power_watts", {})
    joules = report.get("energy_joules", {})
    answer = (
        f"{samples} power samples over {report.get('duration_seconds', '?')} s; {FEWEST_SAMPLES} are needed"
    )
    checks = [make_check(f"{name}: sensor updates", samples < FEWEST_SAMPLES, answer, samples=samples)]
    if float(joules.get("total", 0)) <= 0:
        checks.append(make_check(f"{name}: energy", True, "0 J: nothing was measured, which is not zero"))
    if "peak" in watts and watts.get("min") == watts["peak"]:
        answer = f"lowest and highest power are both {watts['peak']} W: this is a single reading"
        checks.append(make_check(f"{name}: one power", True, answer, watts=watts["peak"]))
    if "energy_joules" in model and "model" in name.removeprefix("energy_report"):
        timing_j = float(model["energy_joules"]) / int(model["num_runs"])
        report_j = float(joules.get("per_run", math.nan))
        answer = f"{timing_j:.3f} J per run in full_model_timing.json, {report_j:.3f} J in {name}"
        refused = not abs(report_j / timing_j - 1) <= SAME_ENERGY  # NaN is refused too
        pair = {"timing_j": round(timing_j, 4), "report_j": round(report_j, 4)}
        checks.append(make_check("one energy per run", refused, answer, **pair))
    return [*checks, *above_limit(name, float(watts.get("peak", 0)), limit_w)]


def _power_log(path: Path, runs: dict[str, dict[str, Any]], limit_w: float | None) -> list[Check]:
    """A log's readings, the board's limit, that it covers the runs, and their published joules."""
    try:
        series = read_power_log(path)
    except BadDataError as error:
        return [make_check(f"{path.name}: readings", True, f"cannot be read: {error.problem}")]
    checks = []
    for gpu, readings in series.items():
        watts, samples = valid_readings(readings.t_s, readings.power_w)[1], len(readings.power_w)
        answer = f"{samples:,} samples, {samples - len(watts)} of them 0 W or not a number"
        factors = {"samples": samples, "none": samples - len(watts)}
        checks.append(
            make_check(f"{path.name}, GPU {gpu}: readings", samples > len(watts), answer, **factors)
        )
        checks += above_limit(f"{path.name}, GPU {gpu}", max(watts, default=0.0), limit_w)
    for name, run in runs.items():
        joules = float(run["energy_joules"]) if "energy_joules" in run else None
        window = seconds_of(run["start_timestamp"]), seconds_of(run["end_timestamp"])
        refused, answer = published_energy(list(series.values()), *window, joules)
        checks.append(make_check(f"{path.name}: energy of {name}", refused, answer))
    return checks
