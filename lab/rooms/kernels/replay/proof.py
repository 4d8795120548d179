"""What a replay proves: the same kernel or not, how far its time is off, and whether the parts add up to the whole.

A launch counts as replayed only if its kernel's name, grid, block and shared memory are those of the original; ops that
launch several are compared as a group, in order. Error = (replay - trace) / trace on medians. Closure compares the sum
of replayed times with the sum of recorded ones, per forward, and with the time the GPU was busy.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.core.files import write_atomic
from lab.errors import BadDataError
from lab.recordings.names import kernel_class, short_name
from lab.rooms.kernels.catalogue.execution_trace import read_json_bytes
from lab.rooms.kernels.replay.args import CallRun, Launch, RawReplay, ReplayPlan, Signature, SignatureRun
from lab.stats.effects import median_ratio_ci

PLAN_FILE = "replay_plan.json"
RAW_FILE = "replay/replay_raw.json"
RESULT, TABLE = "replay.json", "tables/replay.csv"
EXACT, GEOMETRY, OTHER, NONE, VARIED, NOT_RUN = (
    "exact",
    "other geometry",
    "other kernel",
    "nothing launched",
    "varied",
    "not replayed",
)
REBUILT = ("ran", "shapes")
OFTEN = 8  # a launch recorded less often carries the noise of a single reading
TIME_BAR, ERROR_BAR, CLOSURE_BAR = 98.0, 5.0, 5.0  # percent


class Row(msgspec.Struct, kw_only=True):
    """One launch of one signature. Times in us; None where there is nothing to compare."""

    sig_id: str
    position: int  # of the launch in its op's group
    op: str
    overload: str
    kernel: str
    class_: str = msgspec.field(name="class")
    kind: str
    mode: str
    count: int
    trace_sum_us: float
    trace_median_us: float
    time_share: float
    n_ran: int
    us: dict[str, Any] | None  # {"median": us, "ci": [low, high]}: of the ratio's bootstrap, 95 %
    same_kernel: str
    err_pct: float | None
    arg_src: str
    origin: str
    launched: str  # the kernel the replay launched, where it is another
    flags: list[str]
    name: str


class Coverage(msgspec.Struct, kw_only=True):
    """How much of the recording was replayed, in launches and in time, by kind of launch."""

    launches: int
    rebuilt_launches: int
    same_launches: int
    time_us: float
    rebuilt_time_us: float
    same_time_us: float

    def percent(self, what: str, unit: str) -> float:
        part, whole = getattr(self, f"{what}_{unit}"), getattr(self, unit)
        return 100.0 * part / whole if whole else math.nan


class ForwardClosure(msgspec.Struct, kw_only=True):
    """One forward: sums of kernel time, recorded and replayed, over what was replayed as the same kernel."""

    name: str
    phase: str
    wall_us: float
    busy_us: float
    trace_sum_us: float
    compared_us: float  # recorded time of what was replayed as the same kernel
    replay_sum_us: float

    @property
    def closure_pct(self) -> float:
        """How far the replayed sum is off, over the launches that can be compared."""
        return 100.0 * (self.replay_sum_us / self.compared_us - 1) if self.compared_us else math.nan


class Result(msgspec.Struct, kw_only=True):
    """replay.json."""

    mode: str
    pace: str
    repeats: int
    device: str
    device_name: str
    trace_device_name: str
    same_gpu: bool
    coverage: dict[str, Coverage]
    error: dict[str, float | None]
    closure: list[ForwardClosure]
    rows: list[Row]
    uncovered: list[dict[str, Any]]
    sources: dict[str, int]
    versions: dict[str, str]
    notes: list[str]
    bars: dict[str, bool | None]


@dataclass(frozen=True)
class ReplayFindings:
    """What the driver shows; the protocol of lab.rooms.Findings."""

    verdict: list[str]
    status: str
    files: list[Path]
    terminal: str
    lacking: list[str] = field(default_factory=list)


def is_replay(folder: Path) -> bool:
    """Whether `folder` is a run of `lab run kernels replay`."""
    return (folder / PLAN_FILE).is_file()


def nothing_done(what: str, path: Path) -> ReplayFindings:
    """The findings of a step that left no result: the step's own failure says why."""
    return ReplayFindings(
        verdict=[what], status="fail", files=[], terminal=what, lacking=[f"{what}: {path.name} is missing"]
    )


def analyse_replay(folder: Path, out: Path) -> ReplayFindings:
    """Judge the replay in `folder`; write replay.json and tables/replay.csv into `out`."""
    if not (folder / RAW_FILE).is_file():
        return nothing_done("nothing was replayed", folder / RAW_FILE)
    plan = read_file(folder / PLAN_FILE, ReplayPlan)
    raw = read_file(folder / RAW_FILE, RawReplay)
    result = judge(plan, raw)
    write_atomic(out / RESULT, msgspec.json.format(msgspec.json.encode(result), indent=1))
    write_atomic(out / TABLE, table_text(result.rows))
    return ReplayFindings(
        verdict=verdict(result),
        status=status(result),
        files=[out / RESULT, out / TABLE],
        terminal=terminal(result, plan),
        lacking=lacking(result),
    )


def judge(plan: ReplayPlan, raw: RawReplay) -> Result:
    """All comparisons of one replay with its recording. Pure."""
    if len(raw.signatures) != len(plan.signatures):
        raise BadDataError(
            f"the replay holds {len(raw.signatures)} signatures, its plan {len(plan.signatures)}",
            fix="the files are of different runs",
        )
    calls = _calls(plan, raw)
    kernel_us = sum(us for call in plan.calls for us in call.dur_us) + sum(o.dur_us for o in plan.orphans)
    rows = [
        row
        for place in range(len(plan.signatures))
        for row in _rows(plan, raw, place, calls[place], kernel_us)
    ]
    closure = _closure(plan, raw, calls) if raw.calls else []
    same_gpu = raw.device_name == plan.origin.device_name and bool(raw.device_name)
    result = Result(
        mode=raw.mode,
        pace=raw.pace,
        repeats=raw.repeats,
        device=raw.device,
        device_name=raw.device_name,
        trace_device_name=plan.origin.device_name,
        same_gpu=same_gpu,
        coverage=_coverage(plan, raw, calls),
        error=_errors(rows),
        closure=closure,
        rows=rows,
        uncovered=_uncovered(plan, raw, calls),
        sources=dict(Counter(origin_of(s, r) for s, r in zip(plan.signatures, raw.signatures, strict=True))),
        versions=raw.versions,
        notes=[*plan.notes, *raw.notes, *_notes(plan, raw)],
        bars={},
    )
    result.bars = bars(result)
    return result


@dataclass
class _Made:
    """What became of one call of the plan: how its launches compare, and their times per pass."""

    call: int  # place in the plan
    same: str
    dur_us: Sequence[Sequence[float]] = ()
    launched: tuple[Launch, ...] = ()


def _calls(plan: ReplayPlan, raw: RawReplay) -> list[list[_Made]]:
    """For each signature, its calls; in order each was made itself, else the lone call speaks for all of them."""
    made: list[list[_Made]] = [[] for _ in plan.signatures]
    by_place = {call.place: call for call in raw.calls}
    for place, call in enumerate(plan.calls):
        signature, alone = plan.signatures[call.sig], raw.signatures[call.sig]
        if place in by_place:
            one = _in_order(signature, by_place[place], raw, place)
        else:
            one = _alone(signature, alone, raw, place)
        made[call.sig].append(one)
    return made


def _in_order(signature: Signature, run: CallRun, raw: RawReplay, place: int) -> _Made:
    if run.launch_set < 0:
        return _Made(place, VARIED)
    launched = raw.launch_sets[run.launch_set]
    return _Made(place, compare(signature.launches, launched), run.dur_us, launched)


def _alone(signature: Signature, run: SignatureRun, raw: RawReplay, place: int) -> _Made:
    if run.status != "ran" or (raw.device == "cpu" and signature.launches):
        return _Made(place, NOT_RUN)
    return _Made(place, compare(signature.launches, run.launches), run.dur_us, run.launches)


def compare(original: Sequence[Launch], replayed: Sequence[Launch]) -> str:
    """How two groups of launches compare, in order: name, grid, block and shared memory; copies by kind and bytes."""
    if not original:
        return EXACT if not replayed else OTHER
    if not replayed:
        return NONE
    if [(one.kind, one.name) for one in original] != [(one.kind, one.name) for one in replayed]:
        return OTHER
    return (
        EXACT
        if all(_geometry(a) == _geometry(b) for a, b in zip(original, replayed, strict=True))
        else GEOMETRY
    )


def _geometry(launch: Launch) -> tuple[Any, ...]:
    return (launch.grid, launch.block, launch.smem_bytes) if launch.kind == "kernel" else (launch.bytes,)


def _rows(plan: ReplayPlan, raw: RawReplay, place: int, made: list[_Made], kernel_us: float) -> Iterable[Row]:
    signature, run = plan.signatures[place], raw.signatures[place]
    launches = signature.launches or (Launch(name=signature.op, kind="cpu_op"),)
    same = Counter(one.same for one in made)
    verdict_ = same.most_common(1)[0][0] if same else NOT_RUN
    for position, launch in enumerate(launches):
        recorded = np.array([plan.calls[one.call].dur_us[position] for one in made])
        replayed = np.array(
            [
                times[position]
                for one in made
                if one.same == EXACT
                for times in one.dur_us
                if position < len(times)
            ]
        )
        yield Row(
            sig_id=signature.sig_id,
            position=position,
            op=signature.op,
            overload=run.overload,
            kernel=short_name(launch.name) if launch.kind == "kernel" else launch.name,
            class_=_class(launch),
            kind=launch.kind,
            mode=raw.mode,
            count=len(made),
            trace_sum_us=round(float(recorded.sum()), 3),
            trace_median_us=round(float(np.median(recorded)), 4),
            time_share=float(recorded.sum()) / kernel_us if kernel_us else 0.0,
            n_ran=len(replayed),
            us=_us(recorded, replayed),
            same_kernel=verdict_,
            err_pct=_error(recorded, replayed),
            arg_src=worst_source(run),
            origin=origin_of(signature, run),
            launched=_other_name(launch, position, made),
            flags=_flags(run, same),
            name=launch.name,
        )


def _class(launch: Launch) -> str:
    return kernel_class(launch.name) if launch.kind == "kernel" else launch.kind


def _us(recorded: np.ndarray, replayed: np.ndarray) -> dict[str, Any] | None:
    """Median and the 95 % interval that a bootstrap of the ratio to the recording gives it."""
    if len(replayed) == 0:
        return None
    middle = float(np.median(replayed))
    low, high = (
        median_ratio_ci(recorded, replayed, resamples=400)
        if min(recorded.min(), replayed.min()) > 0
        else (math.nan,) * 2
    )
    base = float(np.median(recorded))
    interval = None if math.isnan(low) else [round(low * base, 4), round(high * base, 4)]
    return {"median": round(middle, 4), "ci": interval}


def _error(recorded: np.ndarray, replayed: np.ndarray) -> float | None:
    base = float(np.median(recorded))
    return round(100.0 * (float(np.median(replayed)) / base - 1), 3) if len(replayed) and base > 0 else None


def _other_name(launch: Launch, position: int, made: list[_Made]) -> str:
    """What was launched instead, where it was something else."""
    other = next(
        (one for one in made if one.same in (OTHER, GEOMETRY) and position < len(one.launched)), None
    )
    if other is None:
        return ""
    found = other.launched[position]
    return (
        found.name
        if found.name != launch.name
        else f"grid {found.grid} block {found.block} smem {found.smem_bytes}"
    )


def _flags(run: SignatureRun, same: Counter[str]) -> list[str]:
    found = [
        f"{count} calls: {what}" for what, count in sorted(same.items()) if what != EXACT and len(same) > 1
    ]
    if run.shapes_equal is False:
        found.append("results have other shapes than recorded")
    return found + ([run.reason] if run.reason and run.status != "ran" else [])


def worst_source(run: SignatureRun) -> str:
    order = ("recorded", "ranged", "bounded", "default", "synthetic")
    return max((arg.src for arg in run.args), key=order.index, default="recorded")


def origin_of(signature: Signature, run: SignatureRun) -> str:
    return signature.origin if run.status != "unresolved" else "none"


def _coverage(plan: ReplayPlan, raw: RawReplay, calls: list[list[_Made]]) -> dict[str, Coverage]:
    """By kind of launch, and `kernel` also holds the orphans: nothing recorded is left out of the whole."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0.0, 0.0, 0.0])
    for place, made in enumerate(calls):
        signature, rebuilt = plan.signatures[place], raw.signatures[place].status in REBUILT
        for one in made:
            for position, us in enumerate(plan.calls[one.call].dur_us):
                kind = signature.launches[position].kind if signature.launches else "cpu_op"
                _count(sums[kind], us, rebuilt, one.same == EXACT)
    for orphan in plan.orphans:
        _count(sums[orphan.launch.kind], orphan.dur_us, False, False)
    return {
        kind: Coverage(
            launches=int(s[0]),
            rebuilt_launches=int(s[1]),
            same_launches=int(s[2]),
            time_us=round(s[3], 3),
            rebuilt_time_us=round(s[4], 3),
            same_time_us=round(s[5], 3),
        )
        for kind, s in sorted(sums.items())
    }


def _count(sums: list[float], us: float, rebuilt: bool, same: bool) -> None:
    for place, there in ((0, True), (1, rebuilt), (2, same)):
        sums[place] += there
        sums[place + 3] += us * there


def _errors(rows: list[Row]) -> dict[str, float | None]:
    """|error| over kernels: median over distinct launches, and weighted by recorded time; and the signed total."""
    held = [row for row in rows if row.err_pct is not None and row.kind in ("kernel", "cpu_op")]
    if not held:
        return {
            "median_abs_pct": None,
            "weighted_abs_pct": None,
            "p90_abs_pct": None,
            "distinct": 0,
            "often": 0,
        }
    sizes = np.array([abs(row.err_pct or 0.0) for row in held])
    weights = np.array([row.trace_sum_us for row in held])
    launches = np.repeat(sizes, [row.count for row in held])
    often = sizes[[row.count >= OFTEN for row in held]]
    return {
        "median_abs_pct": round(float(np.median(sizes)), 3),
        "median_abs_pct_by_launch": round(float(np.median(launches)), 3),
        "weighted_abs_pct": round(float((sizes * weights).sum() / weights.sum()), 3),
        "median_abs_pct_often": round(float(np.median(often)), 3) if len(often) else None,
        "often": len(often),
        "p90_abs_pct": round(float(np.percentile(sizes, 90)), 3),
        "distinct": len(held),
    }


def _closure(plan: ReplayPlan, raw: RawReplay, calls: list[list[_Made]]) -> list[ForwardClosure]:
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for made in calls:
        for one in made:
            call = plan.calls[one.call]
            sums[call.forward][0] += sum(call.dur_us)
            if one.same == EXACT and one.dur_us:
                sums[call.forward][1] += sum(call.dur_us)
                sums[call.forward][2] += float(np.median(np.array(one.dur_us), axis=0).sum())
    return [
        ForwardClosure(
            name=forward.name,
            phase=forward.phase,
            wall_us=forward.wall_us,
            busy_us=forward.busy_us,
            trace_sum_us=round(sums[place][0], 3),
            compared_us=round(sums[place][1], 3),
            replay_sum_us=round(sums[place][2], 3),
        )
        for place, forward in enumerate(plan.forwards)
        if sums[place][0] > 0
    ]


def _uncovered(plan: ReplayPlan, raw: RawReplay, calls: list[list[_Made]]) -> list[dict[str, Any]]:
    """Every reason why time is missing from the proof, worst first."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for place, made in enumerate(calls):
        signature, run = plan.signatures[place], raw.signatures[place]
        for one in made:
            if one.same != EXACT and not (raw.device == "cpu" and run.status in REBUILT):
                entry = sums[(signature.op, run.reason or one.same)]
                entry[0] += max(1, len(signature.launches))
                entry[1] += sum(plan.calls[one.call].dur_us)
    for orphan in plan.orphans:
        entry = sums[(short_name(orphan.launch.name), orphan.reason)]
        entry[0], entry[1] = entry[0] + 1, entry[1] + orphan.dur_us
    rows = [
        {"op": op, "reason": why, "launches": int(n), "time_us": round(us, 3)}
        for (op, why), (n, us) in sums.items()
    ]
    return sorted(rows, key=lambda row: -float(row["time_us"]))


def _notes(plan: ReplayPlan, raw: RawReplay) -> list[str]:
    notes = []
    if not plan.origin.has_kernels and raw.device == "cpu":
        notes.append(
            "recorded CPU times hold the profiler's own work: the replay's are shown beside them, not compared"
        )
    if plan.origin.has_kernels and raw.device == "cpu":
        notes.append(
            "no GPU here: arguments were rebuilt and the ops called on the CPU; which kernels they launch is not proven"
        )
    if raw.device == "cuda" and raw.num_sms != plan.origin.num_sms and plan.origin.num_sms:
        notes.append(
            f"the recording is of {plan.origin.device_name} ({plan.origin.num_sms} SMs), the replay of "
            f"{raw.device_name} ({raw.num_sms}): times are not comparable"
        )
    return notes


def bars(result: Result) -> dict[str, bool | None]:
    """The room's bars on a GPU; None where they do not apply."""
    kernel = result.coverage.get("kernel")
    if kernel is None or result.device == "cpu" or not result.same_gpu:
        return {"same_kernel_time": None, "median_error": None, "closure": None}
    share, error = kernel.percent("same", "time_us"), result.error["median_abs_pct"]
    in_order = result.mode == "in-order"
    whole = total_closure(result)
    return {
        "same_kernel_time": share >= TIME_BAR,
        "median_error": None if not in_order or error is None else error <= ERROR_BAR,
        "closure": None if not in_order else abs(whole) <= CLOSURE_BAR,
    }


def total_closure(result: Result) -> float:
    """Replayed sum over recorded sum of all forwards, in percent off."""
    compared = sum(one.compared_us for one in result.closure)
    return 100.0 * (sum(one.replay_sum_us for one in result.closure) / compared - 1) if compared else math.nan


def status(result: Result) -> str:
    if not any(one.rebuilt_launches for one in result.coverage.values()):
        return "fail"
    return "warn" if False in result.bars.values() or result.uncovered else "ok"


def lacking(result: Result) -> list[str]:
    """What was asked for and is not there: launches that were not replayed at all."""
    missing = [one for one in result.uncovered if one["reason"] not in (GEOMETRY, OTHER, VARIED)]
    return [
        f"{one['op']}: {one['launches']} launches ({one['time_us']:.1f} us) not replayed: {one['reason']}"
        for one in missing
    ]


def verdict(result: Result) -> list[str]:
    """The sentences that answer the question, numbers first."""
    lines = []
    kernel = result.coverage.get("kernel")
    if kernel and result.device != "cpu":
        lines.append(
            f"{kernel.percent('same', 'time_us'):.2f} % of kernel time ({kernel.same_launches} of {kernel.launches} "
            f"launches) replays as the same kernel"
        )
    if result.error.get("median_abs_pct") is not None and result.device != "cpu":
        lines.append(
            f"{result.mode} replay is off by {result.error['median_abs_pct']:.2f} % (median |error| of "
            f"{result.error['distinct']:.0f} distinct launches; {result.error['weighted_abs_pct']:.2f} % weighted by time)"
        )
        if result.error.get("often"):
            lines.append(
                f"the {result.error['often']:.0f} recorded {OFTEN} times or more are off by {result.error['median_abs_pct_often']:.2f} %"
            )
    if not math.isnan(total_closure(result)) and result.device != "cpu":
        lines.append(
            f"closure: replayed kernel times add up to {total_closure(result):+.2f} % of the recorded ones"
        )
    for kind, cover in result.coverage.items():
        what = {"kernel": "compute launches", "memcpy": "copies", "memset": "fills", "cpu_op": "CPU ops"}.get(
            kind, kind
        )
        lines.append(
            f"{cover.rebuilt_launches} of {cover.launches} {what} have a rebuilt op "
            f"({cover.percent('rebuilt', 'launches'):.1f} %, {cover.percent('rebuilt', 'time_us'):.1f} % of their time)"
        )
    return lines


def terminal(result: Result, plan: ReplayPlan) -> str:
    """What one command prints: coverage, proof, errors, closure, what is not covered, worst rows."""
    where = f"{result.device_name or result.device}" + (
        "" if result.same_gpu else f"; recorded on {result.trace_device_name or 'a CPU'}"
    )
    lines = [
        f"replay, mode {result.mode}, pace {result.pace}, {result.repeats} passes, on {where}",
        f"{len(plan.calls)} calls, {len(plan.signatures)} distinct; arguments from "
        + ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(result.sources.items())),
        "",
    ]
    lines += [f"  {line}" for line in verdict(result)]
    for name, met in result.bars.items():
        if met is not None:
            lines.append(f"  bar {name.replace('_', ' ')}: {'met' if met else 'NOT met'}")
    if not math.isnan(total_closure(result)):
        lines += [
            "",
            f"  {'forward':12} {'wall us':>12} {'busy us':>10} {'kernels us':>11} {'replay us':>11} {'off':>8} {'covered':>8}",
        ]
        lines += [_closure_line(one) for one in result.closure]
    lines += _table(
        "not proven",
        [
            f"  {one['time_us']:10.1f} us {one['launches']:6d} x {one['op']}: {one['reason']}"
            for one in result.uncovered[:12]
        ],
    )
    worst = sorted(
        (row for row in result.rows if row.err_pct is not None and result.device != "cpu"),
        key=lambda row: -abs(row.err_pct or 0) * row.time_share,
    )
    lines += _table(
        "largest errors, by their weight in time",
        [
            f"  {row.err_pct:+7.1f} %  {row.trace_median_us:9.2f} us x {row.count:<5d} {row.op:28} {row.kernel[:60]}"
            for row in worst[:8]
        ],
    )
    return "\n".join([*lines, *(f"note: {note}" for note in result.notes)])


def _closure_line(one: ForwardClosure) -> str:
    covered = 100 * one.compared_us / one.trace_sum_us if one.trace_sum_us else math.nan
    return (
        f"  {one.name:12} {one.wall_us:12.1f} {one.busy_us:10.1f} {one.trace_sum_us:11.1f} {one.replay_sum_us:11.1f} "
        f"{one.closure_pct:+7.2f}% {covered:7.2f}%"
    )


def _table(title: str, lines: list[str]) -> list[str]:
    return ["", title, *lines] if lines else []


def table_text(rows: list[Row]) -> str:
    """replay.csv: the rows, by share of time."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            "sig_id",
            "position",
            "op",
            "overload",
            "kernel",
            "class",
            "kind",
            "mode",
            "count",
            "trace_sum_us",
            "trace_median_us",
            "time_share",
            "n_ran",
            "replay_median_us",
            "replay_ci_low_us",
            "replay_ci_high_us",
            "err_pct",
            "same_kernel",
            "arg_src",
            "origin",
            "launched",
            "flags",
            "name",
        ]
    )
    for row in sorted(rows, key=lambda row: -row.time_share):
        us = row.us or {"median": "", "ci": None}
        low, high = us["ci"] or ("", "")
        writer.writerow(
            [
                row.sig_id,
                row.position,
                row.op,
                row.overload,
                row.kernel,
                row.class_,
                row.kind,
                row.mode,
                row.count,
                row.trace_sum_us,
                row.trace_median_us,
                round(row.time_share, 6),
                row.n_ran,
                us["median"],
                low,
                high,
                "" if row.err_pct is None else row.err_pct,
                row.same_kernel,
                row.arg_src,
                row.origin,
                row.launched,
                "; ".join(row.flags),
                row.name,
            ]
        )
    return text.getvalue()


def read_file(path: Path, kind: type[Any]) -> Any:
    """One of the room's own files. Raises MissingError and BadDataError."""
    try:
        return msgspec.json.decode(read_json_bytes(path, path.name), type=kind)
    except msgspec.DecodeError as error:
        raise BadDataError(f"{path.name} does not fit: {error}", where=path) from error
