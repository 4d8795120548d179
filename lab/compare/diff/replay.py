"""`lab diff A B --replay`: whether a change is the kernel's own or its neighbourhood's.

The recorded calls of both sides run again on one GPU of this machine, by the kernels room's replay (its own
command, in a process each): hot, cold and in order. A change that comes back when the calls run alone is the
kernels' own. One that comes back in order only is what runs before them: the caches. One that never comes
back was in the recording's surroundings: clocks, overlap, contention.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import lab
from lab.compare.diff.comparison import Pair, Replayed
from lab.compare.diff.findings import Finding
from lab.compare.diff.split import Row
from lab.compare.side import Key, Work, kernel_name
from lab.core.run import MANIFEST
from lab.errors import BusyError, GpuError, StepFailed, UsageError
from lab.gpus.discover import discover

MODES = ("hot", "cold", "in-order")
KERNEL, CACHES, AROUND, OUTSIDE, CANNOT = (
    "the kernel itself",
    "the neighbourhood: caches",
    "the neighbourhood: clocks, overlap or contention",
    "the neighbourhood: caches, clocks, overlap or contention",  # where shared memory is not known
    "cannot tell",
)
REPLAYED = ("same_kernel_duration", "other_kernel", "replaced_block")
SHARE = 0.5  # of a change that a replay has to show
EXACT = "exact"
LAST_LINES = 12


@dataclass(frozen=True)
class Time:
    """One launch of a call, replayed: its median and half of its 95 % interval, ns; `same` as replay.json."""

    ns: float
    spread_ns: float
    same: str
    launched: str


Times = dict[tuple[str, str, str], Time]  # (op, dims, kernel)


_Row = dict[str, Any]  # of replay.json


def need_gpu() -> str:
    """The GPU that replays, by name. Raises GpuError where there is none: said before anything starts."""
    gpus = discover()
    if not gpus:
        raise GpuError(
            "--replay runs the changed kernels again, and this machine has no GPU",
            fix="leave --replay away, or compare the same recordings on a machine with the GPU in question",
        )
    return gpus[0].name


def replay(
    pair: Pair,
    paths: tuple[Path, Path],
    out: Path,
    say: Callable[[str], None],
    *,
    image: str | None = None,
    execution_trace_a: Path | None = None,
    execution_trace_b: Path | None = None,
) -> tuple[list[Replayed], list[str]]:
    """The verdict of each finding that has one, and notes; paths: of both sides; runs stay in `out`.

    Raises UsageError for recordings without arguments of ops, BusyError for a folder with earlier replays,
    StepFailed for a replay that ends without a result.
    """
    if out.exists() and any(out.iterdir()):
        raise BusyError("earlier replays are here", location=out, fix="name another -o")
    for work in (pair.a, pair.b):
        if not (work.trace.operators.types_id >= 0).any():
            raise UsageError(
                "a replay needs the arguments of ops, which this recording does not hold",
                location=work.trace.source,
                fix="record with torch.profiler and record_shapes=True",
            )
    times: dict[tuple[str, str], Times] = {}
    notes: list[str] = []
    memory = True  # the replay in order has the model's caches
    for mode in MODES:
        for side, work, path, nodes in zip(
            "AB", (pair.a, pair.b), paths, (execution_trace_a, execution_trace_b), strict=True
        ):
            say(f"replaying {side}, {mode}")
            folder = out / f"{side}_{mode}"
            source = [*source_of(work, path), *(["--execution-trace", str(nodes)] if nodes else [])]
            _run(source, folder, mode, image)
            times[side, mode], knows_memory, texts = read_times(folder)
            memory &= knows_memory
            notes += [f"{side}: {text}" for text in texts]
    judged = [
        judge(index, finding, pair.comparison.rows, times, memory=memory)
        for index, finding in enumerate(pair.comparison.findings)
        if finding.kind in REPLAYED
    ]
    return judged, list(dict.fromkeys(notes))


def source_of(work: Work, path: Path) -> list[str]:
    """What to replay: the run, which has more of the arguments than its trace, or else the trace."""
    if (path / MANIFEST).is_file():
        return [str(path), "--rank", str(work.rank)]
    return [str(work.trace.source)]


def _run(source: Sequence[str], folder: Path, mode: str, image: str | None, gpus: str = "1") -> None:
    home = str(Path(lab.__file__).parents[1])
    command = [sys.executable, "-m", "lab", "run", *(["--image", image] if image else [])]
    command += ["--quiet", "--gpus", gpus, "-o", str(folder), "kernels", "replay", *source]
    command += ["--mode", mode]
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        stdin=subprocess.DEVNULL,
    )
    # 1: something of the recording could not be replayed, which the rows themselves say.
    if result.returncode not in (0, 1) or not (folder / "replay.json").is_file():
        last_lines = "\n".join([*result.stdout.splitlines(), *result.stderr.splitlines()][-LAST_LINES:])
        raise StepFailed(
            f"the replay ({mode}) ended with {result.returncode}:\n{last_lines}", location=folder
        )


def read_times(folder: Path) -> tuple[Times, bool, list[str]]:
    """The replayed time of each (op, dims, kernel), of several signatures their mean by calls; whether it is
    known which tensors share memory; and notes."""
    result = msgspec.json.decode((folder / "replay.json").read_bytes())
    plan = msgspec.json.decode((folder / "replay_plan.json").read_bytes())
    keys = {signature["sig_id"]: (signature["op"], dims_of(signature)) for signature in plan["signatures"]}
    grouped: dict[tuple[str, str, str], list[_Row]] = {}
    for row in result["rows"]:
        if row["sig_id"] in keys:
            grouped.setdefault((*keys[row["sig_id"]], kernel_name(row["name"])), []).append(row)
    notes = []
    recorded_on, device = result["trace_device_name"], result["device_name"]
    if result["device"] != "cuda":
        notes.append(f"the replay ran on {result['device']}, so no kernel was replayed")
    elif device != recorded_on:
        devices = f"recorded on {recorded_on or 'an unknown GPU'}, replayed on {device}"
        notes.append(f"{devices}: the verdict holds for the latter")
    memory = bool(plan.get("origin", {}).get("execution_trace"))
    if not memory:
        notes.append("no execution trace, so in order it has no model's caches: see docs/diff.md")
    return {key: _mean(rows) for key, rows in grouped.items()}, memory, notes


def _mean(rows: Sequence[_Row]) -> Time:
    """A time that stands for all rows: not the same kernel if one of them is not."""
    for row in rows:
        if row["same_kernel"] != EXACT or row.get("us") is None:
            same = row["same_kernel"] if row["same_kernel"] != EXACT else "not timed"
            return Time(0.0, 0.0, same, row["launched"])
    calls = sum(row["count"] for row in rows)
    ns = spread = 0.0
    for row in rows:
        weight = 1000 * row["count"] / calls
        ns += weight * float(row["us"]["median"])
        low, high = row["us"].get("ci") or (0.0, 0.0)
        spread += weight * (high - low) / 2
    return Time(ns, spread, EXACT, "")


def dims_of(signature: dict[str, Any]) -> str:
    """The shapes as a trace writes them, one entry per argument."""
    if (raw := signature.get("raw")) is not None:
        return _text(raw.get("dims", []))
    dims: list[Any] = []
    for arg in signature.get("args") or []:
        if (tensors := arg.get("tensors")) is not None:
            dims.append([tensor.get("shape", []) if tensor else [] for tensor in tensors])
        else:
            dims.append((arg.get("tensor") or {}).get("shape", []))
    return _text(dims)


def _text(dims: Any) -> str:
    return json.dumps(dims, separators=(",", ":"))


def judge(
    finding_index: int,
    finding: Finding,
    rows: Sequence[Row],
    times: dict[tuple[str, str], Times],
    *,
    memory: bool = True,
) -> Replayed:
    """What the three modes say of one finding."""
    members = [rows[member] for member in finding.rows]
    sides: dict[str, dict[Key, tuple[float, float]]] = {"A": {}, "B": {}}
    for row in members:
        for side, kernel, n, ns in (
            ("A", row.kernel_a, row.n_a, row.ns_a),
            ("B", row.kernel_b, row.n_b, row.ns_b),
        ):
            if n:
                sides[side][row.op, row.dims, row.types, kernel or ""] = (n, ns)
    recorded = sum(ns for _, ns in sides["B"].values()) - sum(ns for _, ns in sides["A"].values())
    changes: dict[str, float] = {}
    spread: dict[str, float] = {}
    reasons = []
    for mode in MODES:
        of_a, of_b = (_sum(sides[side], times[side, mode], side) for side in ("A", "B"))
        if isinstance(of_a, str) or isinstance(of_b, str):
            reasons.append(of_a if isinstance(of_a, str) else str(of_b))
            continue
        changes[mode] = of_b[0] - of_a[0]
        spread[mode] = of_a[1] + of_b[1]
    verdict, reason = decide(recorded, changes, spread, memory=memory)
    return Replayed(
        finding=finding_index,
        verdict=verdict,
        reason=reasons[0] if verdict == CANNOT and reasons else reason,
        recorded_ns=recorded,
        hot_ns=changes.get("hot"),
        cold_ns=changes.get("cold"),
        in_order_ns=changes.get("in-order"),
    )


def _sum(keys: dict[Key, tuple[float, float]], times: Times, side: str) -> tuple[float, float] | str:
    """Replayed ns per unit of all calls, and its spread; or why it is not known."""
    ns = spread = 0.0
    for (op, dims, _, kernel), (n, _ns) in keys.items():
        time = times.get((op, _normal(dims), kernel))
        if time is None:
            return f"{side}: {op or 'a launch without a known op'} was not replayed"
        if time.same != EXACT:
            instead = f", this torch launches {time.launched}" if time.launched else ""
            return f"{side}: {op} did not replay as the same kernel ({time.same}{instead})"
        ns += n * time.ns
        spread += n * time.spread_ns
    return ns, spread


def _normal(dims: str) -> str:
    try:
        return _text(json.loads(dims)) if dims else "[]"
    except ValueError:
        return dims


def decide(
    recorded: float, changes: dict[str, float], spread: dict[str, float], *, memory: bool = True
) -> tuple[str, str]:
    """The verdict from the change that each mode shows, of `recorded` ns; spread is that of the replays."""
    if not recorded:
        return CANNOT, "the recorded times are equal"
    if missing := [mode for mode in MODES if mode not in changes]:
        return CANNOT, f"{', '.join(missing)} did not run the same kernels"
    if wild := [mode for mode in MODES if spread[mode] > SHARE * abs(recorded)]:
        return CANNOT, f"the replays' own spread ({', '.join(wild)}) is as large as the change"
    share = {mode: changes[mode] / recorded for mode in MODES}
    words = ", ".join(f"{mode} {share[mode]:.0%}" for mode in MODES)
    if max(share["hot"], share["cold"]) >= SHARE:
        return KERNEL, f"of the recorded change come back: {words}"
    if share["in-order"] >= SHARE:
        return CACHES, f"of the recorded change come back: {words}"
    return AROUND if memory else OUTSIDE, f"of the recorded change come back: {words}"
