"""Audits: numbers that cannot be are refused, with the reason and every factor of the product.

They read a run of this room (replay, energy) or a published measurement in the layout of the public seed
(anuragdutt/piep_kernel_execution_graph): kernel counts, times of isolated kernels, a model's own run, power logs. Two
faults can cancel, so a sum that looks right proves nothing as long as one of its factors is refused.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from lab.errors import BadDataError, MissingError
from lab.recordings.names import kernel_class, short_name
from lab.rooms.kernels.catalogue.execution_trace import read_json_bytes
from lab.rooms.kernels.energy.choice import RawEnergy
from lab.rooms.kernels.energy.joules import EnergyResult
from lab.rooms.kernels.energy.windows import FEWEST_UPDATES
from lab.rooms.kernels.replay.args import ReplayPlan, Signature
from lab.rooms.kernels.replay.proof import Result

REFUSED, OK = "REFUSED", "ok"
WINDOW_SLACK = 0.05
SAME_TIME = 0.02  # of the most common time
DISPATCH_US = (2.0, 10.0)  # where a host's launch interval lies
RUNTIME_CALL = re.compile(r"(cuda|hip|cu)[A-Z]\w*\Z")

# Dense tensor-core TFLOP/s of fp16 and bf16, from the vendors' data sheets; the largest bound of any type below fp8.
PEAK_TFLOPS = {
    "H200": 989.0,
    "H100": 989.0,
    "A100": 312.0,
    "A6000": 155.0,
    "V100": 125.0,
    "MI300X": 1307.0,
    "GTX 1080 Ti": 11.4,
}


class Check(msgspec.Struct, kw_only=True):
    """One audit: what was asked, the answer, and the numbers it rests on."""

    name: str
    verdict: str  # REFUSED or ok
    what: str
    factors: dict[str, float | int | str] = {}


def audit(folder: Path, *, board_limit_w: float | None = None) -> list[Check]:
    """All audits that the files in `folder` allow. Raises MissingError when it holds nothing to audit."""
    if not folder.is_dir():
        raise MissingError(
            "this is a file, not a folder" if folder.exists() else "no such folder", where=folder
        )
    checks = [*_of_run(folder), *_of_published(folder, board_limit_w)]
    if not checks:
        raise MissingError(
            "nothing here can be audited",
            where=folder,
            fix="name a run of `lab run kernels replay` or `energy`, or a published measurement's folder",
        )
    return checks


# A published measurement ------------------------------------------------------------------------------------------


def _of_published(folder: Path, board_limit_w: float | None) -> list[Check]:
    checks: list[Check] = []
    counts = [row for path in sorted(folder.glob("*kernel_counts.csv")) for row in read_counts(path)]
    if counts:
        checks.append(no_runtime_calls(counts))
    for path in sorted(folder.glob("*unique_kernels*.csv")):
        checks.append(readable_by_others(path))
    model = _json(folder / "full_model_timing.json")
    isolated = _json(folder / "isolated_kernels_timing.json")
    if isolated:
        checks += of_isolated(isolated, model)
    for path in sorted(folder.glob("energy_report*.json")):
        checks += of_energy_report(path.name, _json(path) or {}, board_limit_w)
    if model:
        checks += of_model_energy(
            model,
            [(p.name, _json(p) or {}) for p in sorted(folder.glob("energy_report*model*.json"))],
            board_limit_w,
        )
    for path in sorted(folder.glob("*power*.csv")):
        checks += of_power_log(path, _spans(isolated, model), board_limit_w)
    return checks


def of_isolated(isolated: dict[str, Any], model: dict[str, Any] | None) -> list[Check]:
    rows = isolated.get("kernels", [])
    counted = {row["name"]: int(row["invocation_count"]) for row in rows}
    forwards = forwards_in_counts([(row["name"], int(row["invocation_count"])) for row in rows])
    checks = [iterations_match(rows), *dispatch_floor(rows)]
    if model:
        checks.append(closure_of_time(rows, forwards, float(model["full_model_inference_us"])))
    checks.append(
        Check(
            name="launches divide into forwards",
            verdict=REFUSED if forwards > 1 else OK,
            factors={"forwards": forwards},
            what=f"the counts cover {forwards} forwards, the model's run is of one: counts are per run, not per forward"
            if forwards > 1
            else f"{len(counted)} kernels, counted over one forward",
        )
    )
    return checks


def iterations_match(rows: Sequence[dict[str, Any]]) -> Check:
    """Each row's window against its time a launch times the launches it claims: |single*N - window| / window."""
    wrong: Counter[int] = Counter()
    for row in rows:
        window_s = _time(row["end_timestamp"]) - _time(row["start_timestamp"])
        claimed_s = float(row["single_time_us"]) * 1e-6 * int(row["benchmark_runs"])
        if window_s > 0 and abs(claimed_s / window_s - 1) > WINDOW_SLACK:
            wrong[round(claimed_s / window_s)] += 1
    if not wrong:
        return Check(
            name="iterations counted are those divided by",
            verdict=OK,
            what=f"{len(rows)} windows agree with runs * time a run",
        )
    factor, most = wrong.most_common(1)[0]
    return Check(
        name="iterations counted are those divided by",
        verdict=REFUSED,
        factors={"rows": sum(wrong.values()), "factor": factor},
        what=f"{sum(wrong.values())} of {len(rows)} rows claim more runs than their window holds; {most} of them {factor} times as many: "
        f"energy divided by those runs is {factor} times too small",
    )


def dispatch_floor(rows: Sequence[dict[str, Any]]) -> list[Check]:
    """Different kernels with the same time, of a launch interval's size: the host was measured, not the GPU."""
    found = []
    for tier in sorted({row.get("tier", 0) for row in rows}):
        times = sorted(float(row["single_time_us"]) for row in rows if row.get("tier", 0) == tier)
        count, middle = most_alike(times)
        floor = count >= 5 and count > len(times) / 2 and DISPATCH_US[0] <= middle <= DISPATCH_US[1]
        alike = [t for t in times if abs(t / middle - 1) <= SAME_TIME]
        what = f"tier {tier}: {count} of {len(times)} kernels take {alike[0]:.2f} to {alike[-1]:.2f} us, whatever they do"
        found.append(
            Check(
                name="times are of kernels",
                verdict=REFUSED if floor else OK,
                factors={"alike": count, "of": len(times), "us": round(middle, 2)},
                what=f"{what}: the host's dispatch"
                if floor
                else f"tier {tier}: {len(times)} times, at most {count} alike",
            )
        )
    return found


def most_alike(times: Sequence[float]) -> tuple[int, float]:
    """How many of the sorted times lie within SAME_TIME of one of them, and which one that is."""
    best, at, low = 0, math.nan, 0
    for middle in times:
        while times[low] < middle * (1 - SAME_TIME):
            low += 1
        count = sum(1 for t in times[low:] if t <= middle * (1 + SAME_TIME))
        if count > best:
            best, at = count, middle
    return best, at


def forwards_in_counts(counts: Iterable[tuple[str, int]]) -> int:
    """How many forwards counts were taken over: norms run equally often in each, and prefill shows a count of its own.

    The least count among the norms of the largest family is one forward's; the family's sum over it is the number.
    """
    families: dict[str, list[int]] = {}
    for name, count in counts:
        if kernel_class(name) == "norm":
            families.setdefault(short_name(name), []).append(count)
    if not families:
        return 1
    family = max(families.values(), key=sum)
    whole, least = sum(family), min(family)
    return whole // least if whole % least == 0 else 1


def closure_of_time(rows: Sequence[dict[str, Any]], forwards: int, model_us: float) -> Check:
    """Predicted over measured time, as published and per forward, with every factor."""
    published = sum(float(row["single_time_us"]) * int(row["invocation_count"]) for row in rows)
    per_forward = published / forwards
    off = 100 * (per_forward / model_us - 1)
    return Check(
        name="parts add up to the whole",
        verdict=OK if abs(off) <= 10 and forwards == 1 else REFUSED,
        what=f"sum of parts {published / 1e3:.2f} ms against {model_us / 1e3:.2f} ms ({100 * (published / model_us - 1):+.0f} %); over "
        f"{forwards} forwards it is {per_forward / 1e3:.2f} ms ({off:+.0f} %): what is left is time the parts do not explain",
        factors={
            "published_ms": round(published / 1e3, 3),
            "forwards": forwards,
            "per_forward_ms": round(per_forward / 1e3, 3),
            "model_ms": round(model_us / 1e3, 3),
            "published_pct": round(100 * (published / model_us - 1), 1),
            "per_forward_pct": round(off, 1),
        },
    )


def no_runtime_calls(counts: Sequence[tuple[str, int]]) -> Check:
    calls = sum(count for name, count in counts if is_runtime_call(name))
    whole = sum(count for _, count in counts)
    return Check(
        name="counts are of kernels",
        verdict=REFUSED if calls else OK,
        factors={"counted": whole, "runtime_calls": calls, "launches": whole - calls},
        what=f"{calls} of {whole} are calls of the CUDA runtime, on the host; {whole - calls} launches are left"
        if calls
        else f"{whole} launches, no runtime calls",
    )


def is_runtime_call(name: str) -> bool:
    """`cudaLaunchKernel`, `hipMemcpyAsync`: one word with a capital after the API's prefix."""
    return bool(RUNTIME_CALL.match(name.strip()))


def readable_by_others(path: Path) -> Check:
    """Whether a standard CSV reader gets the columns that the header promises."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadDataError(f"not a CSV file: {error}", where=path) from error
    header, body = (rows[0], rows[1:]) if rows else ([], [])
    torn = sum(
        1
        for row in body
        if len(row) != len(header) or '\\"' in "".join(row) or any(cell.endswith("\\") for cell in row)
    )
    return Check(
        name=f"{path.name} is CSV",
        verdict=REFUSED if torn else OK,
        factors={"rows": len(body), "torn": torn},
        what=f"{torn} of {len(body)} rows are torn: quotes escaped by a backslash, which CSV does not know"
        if torn
        else f"{len(body)} rows read as written",
    )


def of_energy_report(name: str, report: dict[str, Any], board_limit_w: float | None) -> list[Check]:
    samples = int(report.get("num_power_samples", 0))
    joules = float(report.get("energy_joules", {}).get("total", 0.0))
    watts = report.get("power_watts", {})
    checks = [
        Check(
            name=f"{name}: sensor updates",
            verdict=OK if samples >= FEWEST_UPDATES else REFUSED,
            factors={"samples": samples},
            what=f"{samples} power samples over {report.get('duration_seconds', '?')} s; {FEWEST_UPDATES} are needed",
        )
    ]
    if joules <= 0:
        checks.append(
            Check(
                name=f"{name}: energy",
                verdict=REFUSED,
                what=f"{joules} J: nothing was measured, and nothing is not zero",
            )
        )
    if watts and watts.get("min") == watts.get("peak"):
        checks.append(
            Check(
                name=f"{name}: one power",
                verdict=REFUSED,
                factors={"watts": watts["peak"]},
                what=f"least and highest power are both {watts['peak']} W: it is one reading, in the ramp or out of it",
            )
        )
    peak = watts.get("peak")
    if board_limit_w and peak and float(peak) > 1.05 * board_limit_w:
        checks.append(_over_limit(name, float(peak), board_limit_w))
    return checks


def of_model_energy(
    model: dict[str, Any], reports: Sequence[tuple[str, dict[str, Any]]], board_limit_w: float | None
) -> list[Check]:
    """The model's joules: power within the board's limit, and the same per run in every file that tells them."""
    if "energy_joules" not in model:
        return []
    seconds = _time(model["end_timestamp"]) - _time(model["start_timestamp"])
    per_run, watts = (
        float(model["energy_joules"]) / int(model["num_runs"]),
        float(model["energy_joules"]) / seconds,
    )
    checks = [
        Check(
            name="the model's power",
            verdict=OK,
            what=f"{model['energy_joules']:.1f} J over {seconds:.2f} s are {watts:.0f} W, idle not taken off",
            factors={
                "joules": float(model["energy_joules"]),
                "seconds": round(seconds, 3),
                "watts": round(watts, 1),
                "j_per_run": round(per_run, 4),
            },
        )
    ]
    if board_limit_w and watts > 1.05 * board_limit_w:
        checks.append(_over_limit("full_model_timing.json", watts, board_limit_w))
    for name, report in reports:
        other = float(report.get("energy_joules", {}).get("per_run", math.nan))
        agree = abs(other / per_run - 1) <= 0.1
        checks.append(
            Check(
                name="one energy a run",
                verdict=OK if agree else REFUSED,
                factors={"timing_j": round(per_run, 4), "report_j": round(other, 4)},
                what=f"{per_run:.3f} J a run in full_model_timing.json, {other:.3f} J in {name}",
            )
        )
    return checks


def of_power_log(
    path: Path, spans: Sequence[tuple[str, float, float]], board_limit_w: float | None
) -> list[Check]:
    """A log of power samples: readings that are none, the limit, idle, and whether it was on while others measured."""
    rows = _csv_rows(path, ("timestamp", "power_w"))
    watts, none = [], 0
    for row in rows:
        value = _float(row["power_w"])
        none += value is None or value <= 0
        watts.append(value if value is not None else math.nan)
    times = [_time(row["timestamp"]) for row in rows]
    good = sorted(w for w in watts if w > 0)
    name, checks = path.name, []
    checks.append(
        Check(
            name=f"{name}: readings",
            verdict=REFUSED if none or not good else OK,
            factors={"samples": len(rows), "none": none},
            what=f"{len(rows)} samples, {none} of them 0 W or no number",
        )
    )
    if not good:
        return checks
    if board_limit_w and good[-1] > 1.05 * board_limit_w:
        checks.append(_over_limit(name, good[-1], board_limit_w))
    idle = statistics.median(good[: max(1, len(good) // 20)])
    gaps = [b - a for a, b in itertools.pairwise(times)]
    checks.append(
        Check(
            name=f"{name}: idle",
            verdict=OK,
            factors={
                "idle_w": round(idle, 1),
                "peak_w": good[-1],
                "period_ms": round(1e3 * statistics.median(gaps), 1) if gaps else 0,
            },
            what=f"idle {idle:.1f} W, peak {good[-1]:.1f} W: joules without idle taken off are gross",
        )
    )
    for what, start, end in spans:
        apart = start > times[-1] or end < times[0]
        checks.append(
            Check(
                name=f"{name}: on during {what}",
                verdict=REFUSED if apart else OK,
                what=f"the log {'ends ' + _ago(start - times[-1]) + ' before' if start > times[-1] else 'begins ' + _ago(times[0] - end) + ' after'} "
                f"{what}: it cannot have measured it"
                if apart
                else f"the log covers {what}",
            )
        )
    return checks


def _over_limit(where: str, watts: float, limit: float) -> Check:
    return Check(
        name=f"{where}: board limit",
        verdict=REFUSED,
        factors={"watts": round(watts, 1), "limit_w": limit},
        what=f"{watts:.0f} W is above the board's limit of {limit:.0f} W",
    )


def read_counts(path: Path) -> list[tuple[str, int]]:
    """Kernel names and counts of a counts CSV. Raises BadDataError."""
    found = []
    for number, row in enumerate(_csv_rows(path, ("kernel_name", "count")), start=2):
        if not row["count"].strip().isdecimal():
            raise BadDataError(f"not a count: {row['count']!r}", where=f"{path}:{number}")
        found.append((row["kernel_name"], int(row["count"])))
    return found


def _csv_rows(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise BadDataError(f"this CSV has no column {missing[0]!r}", where=path)
            rows = [{name: row.get(name) or "" for name in needed} for row in reader]
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadDataError(f"not a CSV file: {error}", where=path) from error
    if not rows:
        raise BadDataError("this CSV has no rows", where=path)
    return rows


def _spans(isolated: dict[str, Any] | None, model: dict[str, Any] | None) -> list[tuple[str, float, float]]:
    named = (("the model's run", model), ("the isolated kernels", isolated))
    return [
        (name, _time(one["start_timestamp"]), _time(one["end_timestamp"]))
        for name, one in named
        if one and "start_timestamp" in one
    ]


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(read_json_bytes(path, path.name))
    except ValueError as error:
        raise BadDataError(f"not JSON: {error}", where=path) from error
    if not isinstance(found, dict):
        raise BadDataError("not a JSON object", where=path)
    return found


def _time(text: str) -> float:
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError as error:
        raise BadDataError(f"not a time: {text!r}") from error


def _float(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return None if math.isnan(found) else found


def _ago(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds > 120 else f"{seconds:.0f} s"


# A run of this room ---------------------------------------------------------------------------------------------


def _of_run(folder: Path) -> list[Check]:
    checks: list[Check] = []
    plan_path = folder / "replay_plan.json"
    plan = _struct(plan_path, ReplayPlan) if plan_path.is_file() else None
    if plan and (folder / "replay.json").is_file():
        checks += of_replay(_struct(folder / "replay.json", Result), plan)
    if plan and (folder / "energy.json").is_file():
        raw = folder / "energy/energy_raw.json"
        checks += of_energy(
            _struct(folder / "energy.json", EnergyResult), _struct(raw, RawEnergy) if raw.is_file() else None
        )
    return checks


def of_replay(result: Result, plan: ReplayPlan) -> list[Check]:
    """The replay's own numbers."""
    no_gpu = not plan.origin.has_kernels and result.device == "cpu"
    same = Check(
        name="replayed on the recorded GPU",
        verdict=OK if result.same_gpu or no_gpu else REFUSED,
        what="recorded and replayed on a CPU: no kernel is claimed"
        if no_gpu
        else f"recorded on {result.trace_device_name or 'a CPU'}, replayed on {result.device_name or result.device}",
    )
    whole = sum(sum(call.dur_us) for call in plan.calls) + sum(orphan.dur_us for orphan in plan.orphans)
    told = sum(cover.time_us for cover in result.coverage.values())
    adds_up = Check(
        name="coverage and residual add up",
        verdict=OK if abs(told - whole) <= 1e-3 * whole + 1 else REFUSED,
        factors={"recorded_us": round(whole, 1), "accounted_us": round(told, 1)},
        what=f"{told:.1f} of {whole:.1f} us are accounted for",
    )
    return [same, adds_up, *_flops(result, plan)]


def _flops(result: Result, plan: ReplayPlan) -> list[Check]:
    """No GEMM is faster than the board: 2 M N K over its time against the data sheet."""
    peak = next((tflops for name, tflops in PEAK_TFLOPS.items() if name in result.device_name), None)
    by_id = {signature.sig_id: signature for signature in plan.signatures}
    worst, what = 0.0, ""
    for row in result.rows:
        work = flop(by_id[row.sig_id])
        if work and row.us and row.class_ in ("gemm", "gemv") and row.us["median"] > 0:
            tflops = work / row.us["median"] / 1e6
            if tflops > worst:
                worst, what = tflops, f"{row.op} {row.kernel[:40]}"
    if peak is None or not worst:
        return []
    return [
        Check(
            name="TFLOP/s below the board's peak",
            verdict=OK if worst <= peak else REFUSED,
            factors={"tflops": round(worst, 1), "peak": peak},
            what=f"fastest: {worst:.1f} of {peak:.0f} TFLOP/s, {what}",
        )
    ]


def flop(signature: Signature) -> float:
    """Multiply-adds times two of a matrix product, 0 for other ops."""
    factors = {
        "aten::mm": ("self", "mat2"),
        "aten::bmm": ("self", "mat2"),
        "aten::addmm": ("mat1", "mat2"),
        "aten::baddbmm": ("batch1", "batch2"),
    }
    names = factors.get(signature.op)
    by_name = {arg.name: arg.tensor for arg in signature.args or () if arg.tensor}
    if not names or any(name not in by_name for name in names):
        return 0.0
    a, b = (by_name[name].shape for name in names)
    return 2.0 * math.prod(a) * b[-1] if a and b else 0.0


def of_energy(result: EnergyResult, raw: RawEnergy | None) -> list[Check]:
    """The measurement's own numbers: limit, updates, busy, closure with every factor."""
    checks = [Check(name="energy", verdict=REFUSED, what=why) for why in result.refused]
    own = [row for row in result.rows if row.measured]
    over = [row for row in own if any(flag.startswith(REFUSED) for flag in row.flags)]
    checks.append(
        Check(
            name="power within the board's limit",
            verdict=REFUSED if over else OK,
            factors={"rows": len(own), "over": len(over)},
            what=f"{len(over)} of {len(own)} measured calls are impossible"
            if over
            else f"{len(own)} measured calls",
        )
    )
    if raw is not None:
        windows = [w for one in raw.signatures for w in one.windows] + [one.window for one in raw.model]
        few = sum(1 for w in windows if w.updates < FEWEST_UPDATES)
        checks.append(
            Check(
                name="sensor updates",
                verdict=REFUSED if few else OK,
                factors={"windows": len(windows), "few": few},
                what=f"{few} of {len(windows)} windows hold fewer than {FEWEST_UPDATES} updates",
            )
        )
    idle = [
        row
        for row in own
        if row.busy is not None and row.busy < 0.95 and not any("launch-bound" in flag for flag in row.flags)
    ]
    checks.append(
        Check(
            name="busy or labelled",
            verdict=REFUSED if idle else OK,
            what=f"{len(idle)} calls left the GPU idle without saying so",
        )
    )
    if (closed := result.closure) is not None:
        checks.append(
            Check(
                name="closure",
                verdict=OK if abs(closed.total_pct) <= 10 and abs(closed.net_pct) <= 10 else REFUSED,
                what=f"kernels {closed.sum_net_j:.3f} J + idle {closed.idle_w:.1f} W * {closed.wall_s:.4f} s = {closed.predicted_j:.3f} J "
                f"against {closed.measured_j:.3f} J ({closed.total_pct:+.1f} %; net {closed.net_pct:+.1f} %)",
                factors={name: round(getattr(closed, name), 6) for name in closed.__struct_fields__},
            )
        )
    return checks


def _struct(path: Path, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(read_json_bytes(path, path.name), type=kind)
    except msgspec.DecodeError as error:
        raise BadDataError(f"{path.name} does not fit: {error}", where=path) from error
