"""Audits of a published measurement, in the layout of anuragdutt/piep_kernel_execution_graph.

Two faults can cancel, so every factor of a product is named: a sum that looks right proves nothing.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec

from lab.errors import BadDataError
from lab.perfmodel.classes import kernel_class
from lab.power.energy import published_energy, valid_readings
from lab.power.readings import read_power_log, seconds_of
from lab.recordings.names import short_name
from lab.rooms.kernels.trails import read_json

RUNTIME_CALL = re.compile(r"(cuda|hip|cu)[A-Z]\w*\Z")  # one word with a capital after the API's prefix
FEWEST_SAMPLES = 20
SAME_ENERGY, SAME_TIME, WINDOW_SLACK = 0.1, 0.02, 0.05
DISPATCH_US = (2.0, 10.0)  # the launch interval of a host lies in here
File = dict[str, Any]
REFUSED, OK = "REFUSED", "ok"
LIMIT_SLACK, CLOSURE_PCT = 1.05, 10


class Check(msgspec.Struct, kw_only=True):
    """The answer in a sentence, and the numbers that it rests on."""

    name: str
    verdict: str  # REFUSED or ok
    answer: str = msgspec.field(name="what")
    factors: dict[str, float | int | str] = {}


def make_check(name: str, refused: bool, answer: str, **factors: float | int | str) -> Check:
    return Check(name=name, verdict=REFUSED if refused else OK, answer=answer, factors=factors)


def above_limit(subject: str, watts: float, limit_w: float | None) -> list[Check]:
    """A refusal if `watts` is above the board's limit; nothing if it is not, or if the limit is not known."""
    if not limit_w or watts <= LIMIT_SLACK * limit_w:
        return []
    answer = f"{watts:.0f} W is above the board's limit of {limit_w:.0f} W"
    return [make_check(f"{subject}: board limit", True, answer, watts=round(watts, 1), limit_w=limit_w)]


def of_published(folder: Path, limit_w: float | None) -> list[Check]:
    """All audits that the files of `folder` allow; empty if there are none. Raises BadDataError."""
    checks = [_counts(path) for path in sorted(folder.glob("*kernel_counts.csv"))]
    checks += [_valid_csv(path) for path in sorted(folder.glob("*unique_kernels*.csv"))]
    timings = [folder / f"{name}_timing.json" for name in ("full_model", "isolated_kernels")]
    model, isolated = (read_json(path, File) if path.is_file() else {} for path in timings)
    if isolated:
        checks += of_isolated(isolated["kernels"], float(model.get("full_model_inference_us", 0)))
    for path in sorted(folder.glob("energy_report*.json")):
        checks += _report(path.name, read_json(path, File), model, limit_w)
    if "energy_joules" in model:
        watts = float(model["energy_joules"]) / _seconds(model)
        checks += above_limit("full_model_timing.json", watts, limit_w)
    runs = {"the model's run": model, "the isolated kernels": isolated}
    for path in sorted(folder.glob("*power*.csv")):
        checks += _power_log(
            path, {name: run for name, run in runs.items() if "end_timestamp" in run}, limit_w
        )
    return checks


def _csv_rows(path: Path) -> list[list[str]]:
    try:
        return list(csv.reader(path.read_text(encoding="utf-8").splitlines())) or [[]]
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadDataError(f"not a CSV file: {error}", location=path) from error


def _seconds(run: File) -> float:
    return seconds_of(run["end_timestamp"]) - seconds_of(run["start_timestamp"])


def _counts(path: Path) -> Check:
    """Counts of kernels must not include calls of the CUDA or HIP runtime."""
    header, *rows = _csv_rows(path)
    try:
        name, count = header.index("kernel_name"), header.index("count")
        counts = [(RUNTIME_CALL.match(row[name].strip()), int(row[count])) for row in rows]
    except (ValueError, IndexError) as error:
        raise BadDataError(f"no column of kernel_name or count: {error}", location=path) from error
    counted, calls = sum(n for _, n in counts), sum(n for is_call, n in counts if is_call)
    answer = f"{calls:,} of {counted:,} are calls on the host, which leaves {counted - calls:,} launches"
    factors = {"counted": counted, "runtime_calls": calls, "launches": counted - calls}
    return make_check("counts are of kernels", calls > 0, answer, **factors)


def _valid_csv(path: Path) -> Check:
    header, *rows = _csv_rows(path)
    torn = sum(len(row) != len(header) or '\\"' in "".join(row) or "\\" in "".join(row)[-1:] for row in rows)
    answer = f"{torn:,} of {len(rows):,} rows torn: CSV does not allow a quote escaped by a backslash"
    return make_check(f"{path.name} is CSV", torn > 0, answer, rows=len(rows), torn=torn)


def of_isolated(rows: list[File], model_us: float) -> list[Check]:
    """Windows against the runs they claim, times that are a launch interval, and the sum of all kernels."""
    claims = [(float(row["single_time_us"]) * int(row["benchmark_runs"]), _seconds(row)) for row in rows]
    ratios = [claimed_us * 1e-6 / window_s for claimed_us, window_s in claims if window_s > 0]
    wrong = Counter(round(ratio) for ratio in ratios if abs(ratio - 1) > WINDOW_SLACK)
    factor, bad = max(wrong, key=wrong.__getitem__, default=1), wrong.total()
    answer = (
        f"{bad} of {len(rows)} rows claim other runs than their window holds, most {factor} times as many"
    )
    checks = [make_check("iterations counted are those divided by", bad > 0, answer, rows=bad, factor=factor)]
    tiers = sorted({row.get("tier", 0) for row in rows})
    checks += [_dispatch_floor(tier, [row for row in rows if row.get("tier", 0) == tier]) for tier in tiers]
    return [*checks, _closure(rows, model_us)] if model_us else checks


def _dispatch_floor(tier: Any, rows: list[File]) -> Check:
    """If most kernels take the same time, and that is a launch interval, the host was measured."""
    times_us = sorted(float(row["single_time_us"]) for row in rows)
    groups = [[t for t in times_us if abs(t / middle - 1) <= SAME_TIME] for middle in times_us]
    alike, middle = max(zip(groups, times_us, strict=True), key=lambda pair: len(pair[0]))
    floor = len(alike) >= max(5, len(times_us) / 2) and DISPATCH_US[0] <= middle <= DISPATCH_US[1]
    answer = f"tier {tier}: {len(alike)} of {len(times_us)} kernels take {alike[0]:.2f} to {alike[-1]:.2f} us"
    answer += " whatever they do: the host's dispatch interval" if floor else ""
    return make_check("times are of kernels", floor, answer, alike=len(alike), of=len(times_us))


def _closure(rows: list[File], model_us: float) -> Check:
    """Compare the sum over all kernels with the model's run, which is one forward."""
    norms = defaultdict(
        list
    )  # run equally often in each forward; those of the prefill have a row of their own
    for row in rows:
        if kernel_class(row["name"]) == "norm":
            norms[short_name(row["name"])].append(int(row["invocation_count"]))
    family = max(norms.values(), key=sum, default=[1])
    forwards = sum(family) // min(family) if sum(family) % min(family) == 0 else 1
    sum_us = math.fsum(float(row["single_time_us"]) * int(row["invocation_count"]) for row in rows)
    published_pct, forward_pct = (100 * (us / model_us - 1) for us in (sum_us, sum_us / forwards))
    answer = (
        f"the parts sum to {sum_us / 1e3:.2f} ms, the model takes {model_us / 1e3:.2f} ms "
        f"({published_pct:+.0f} %); the counts cover {forwards} forwards, the model's run one: per forward "
        f"the parts sum to {sum_us / forwards / 1e3:.2f} ms ({forward_pct:+.0f} %)"
    )
    factors = {"published_pct": round(published_pct, 1), "per_forward_pct": round(forward_pct, 1)}
    refused = forwards > 1 or not abs(forward_pct) <= CLOSURE_PCT
    return make_check("parts add up to the whole", refused, answer, forwards=forwards, **factors)


def _report(name: str, report: File, model: File, limit_w: float | None) -> list[Check]:
    """Too few samples, a single reading, joules that were not measured; and the same energy per run."""
    samples, watts = int(report.get("num_power_samples", 0)), report.get("power_watts", {})
    joules = report.get("energy_joules", {})
    faults = {
        f"{FEWEST_SAMPLES} power samples are needed": samples < FEWEST_SAMPLES,
        "0 J: nothing was measured, which is not zero": float(joules.get("total", 0)) <= 0,
        f"a single reading of {watts.get('peak')} W": "peak" in watts and watts.get("min") == watts["peak"],
    }
    answer = "; ".join([f"{samples} samples", *(reason for reason, is_true in faults.items() if is_true)])
    checks = [make_check(f"{name}: power", any(faults.values()), answer, samples=samples)]
    if "energy_joules" in model and "model" in name.removeprefix("energy_report"):
        timing_j = float(model["energy_joules"]) / int(model["num_runs"])
        report_j = float(joules.get("per_run", math.nan))
        answer = f"{timing_j:.3f} J per run in full_model_timing.json, {report_j:.3f} J in {name}"
        refused = not abs(report_j / timing_j - 1) <= SAME_ENERGY  # NaN is refused too
        checks.append(make_check("one energy per run", refused, answer, timing_j=timing_j, report_j=report_j))
    return [*checks, *above_limit(name, float(watts.get("peak", 0)), limit_w)]


def _power_log(path: Path, runs: dict[str, File], limit_w: float | None) -> list[Check]:
    """A log's readings, the board's limit, that it covers the runs, and their published joules."""
    try:
        series = read_power_log(path)
    except BadDataError as error:
        return [make_check(f"{path.name}: readings", True, f"cannot be read: {error.problem}")]
    checks = []
    for gpu, readings in series.items():
        watts, samples = valid_readings(readings.t_s, readings.power_w)[1], len(readings.power_w)
        name, none = f"{path.name}, GPU {gpu}", samples - len(watts)
        answer = f"{samples:,} samples, {none} of them 0 W or not a number"
        checks.append(make_check(f"{name}: readings", none > 0, answer, samples=samples, none=none))
        checks += above_limit(name, float(max(watts, default=0.0)), limit_w)
    for name, run in runs.items():
        joules = float(run["energy_joules"]) if "energy_joules" in run else None
        window = seconds_of(run["start_timestamp"]), seconds_of(run["end_timestamp"])
        refused, answer = published_energy(list(series.values()), *window, joules)
        checks.append(make_check(f"{path.name}: energy of {name}", refused, answer))
    return checks
