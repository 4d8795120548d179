"""`lab diff A B --replay`: whether a change is the kernel's own or its neighbourhood's.

The recorded calls of both sides run again on one GPU of this machine, by the kernels room's replay: hot, cold
and in order. A change that comes back when the calls run alone is the kernels' own. One that comes back in
order only is what runs before them: the caches. One that never does was around them: clocks, overlap,
contention.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

import lab
from lab.compare.diff.comparison import Compared, Replayed
from lab.compare.diff.findings import Finding
from lab.compare.diff.split import Row
from lab.compare.side import Key, kernel_name
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


class Time(NamedTuple):
    """One launch of a call, replayed: its median and half of its 95 % interval, ns; `same` as replay.json."""

    ns: float
    spread_ns: float
    same: str
    launched: str


Times = dict[tuple[str, str, str], Time]  # (op, dims, kernel)
Calls = dict[Key, tuple[float, float]]  # of a finding on one side: calls and recorded ns per unit


def need_gpu() -> None:
    """Raises GpuError where there is none: said before anything starts."""
    if not discover():
        raise GpuError(
            "--replay runs the changed kernels again, and this machine has no GPU",
            fix="leave --replay away, or compare the same recordings on a machine with the GPU in question",
        )


def replay_findings(
    compared: Compared,
    paths: tuple[Path, Path],
    out: Path,
    *,
    image: str | None,
    execution_trace_a: Path | None,
    execution_trace_b: Path | None,
) -> None:
    """Add the verdict of each finding that has one, and notes; paths: of both sides; runs stay in `out`.

    Raises UsageError for recordings without arguments of ops, BusyError for earlier replays, StepFailed.
    """
    pair = compared.shown
    if not pair.units:
        return
    a, b = (units.work for units in pair.units)
    if out.exists() and any(out.iterdir()):
        raise BusyError("earlier replays are here", location=out, fix="name another -o")
    for work in (a, b):
        if not (work.trace.operators.types_id >= 0).any():
            raise UsageError(
                "a replay needs the arguments of ops, which this recording does not hold",
                location=work.trace.source,
                fix="record with torch.profiler and record_shapes=True",
            )
    times: dict[tuple[str, str], Times] = {}
    notes: dict[str, None] = {}
    memory = True  # the replay in order has the model's caches
    sides = ("A", a, paths[0], execution_trace_a), ("B", b, paths[1], execution_trace_b)
    for mode, (side, work, path, nodes) in itertools.product(MODES, sides):
        click.echo(f"replaying {side}, {mode}", err=True)
        folder = out / f"{side}_{mode}"
        # A run has more of the arguments than its trace.
        is_run = (path / MANIFEST).is_file()
        source = [str(path), "--rank", str(work.rank)] if is_run else [str(work.trace.source)]
        _run([*source, *(["--execution-trace", str(nodes)] if nodes else [])], folder, mode, image)
        times[side, mode], knows_memory, texts = read_times(folder)
        memory &= knows_memory
        notes |= dict.fromkeys(f"{side}: {text}" for text in texts)
    compared.difference.replayed = [
        judge(index, finding, pair.comparison.rows, times, memory=memory)
        for index, finding in enumerate(pair.comparison.findings)
        if finding.kind in REPLAYED
    ]
    compared.difference.replay_notes = [*notes]


def _run(source: Sequence[str], folder: Path, mode: str, image: str | None, gpus: str = "1") -> None:
    home = str(Path(lab.__file__).parents[1])
    command = [sys.executable, "-m", "lab", "run", *(["--image", image] if image else [])]
    command += ["--quiet", "--gpus", gpus, "-o", str(folder), "kernels", "replay", *source, "--mode", mode]
    paths = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": paths},
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
    grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
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


def _mean(rows: Sequence[dict[str, Any]]) -> Time:
    """A time that stands for all rows: not the same kernel if one of them is not."""
    ns = spread = 0.0
    for row in rows:
        if row["same_kernel"] != EXACT or row.get("us") is None:
            same = row["same_kernel"] if row["same_kernel"] != EXACT else "not timed"
            return Time(0.0, 0.0, same, row["launched"])
        weight = 1000 * row["count"] / sum(row["count"] for row in rows)
        low, high = row["us"].get("ci") or (0.0, 0.0)
        ns += weight * float(row["us"]["median"])
        spread += weight * (high - low) / 2
    return Time(ns, spread, EXACT, "")


def dims_of(signature: dict[str, Any]) -> str:
    """The shapes as a trace writes them, one entry per argument."""
    if (raw := signature.get("raw")) is not None:
        return _text(raw.get("dims", []))
    return _text([_shapes(arg) for arg in signature.get("args") or []])


def _shapes(arg: dict[str, Any]) -> list[Any]:
    if (tensors := arg.get("tensors")) is not None:
        return [_shapes({"tensor": tensor}) for tensor in tensors]
    shape: list[Any] = (arg.get("tensor") or {}).get("shape", [])
    return shape


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
    of_a: Calls = {key: (row.n_a, row.ns_a) for row in members if (key := row.keys[0])}
    of_b: Calls = {key: (row.n_b, row.ns_b) for row in members if (key := row.keys[1])}
    recorded = sum(ns for _, ns in of_b.values()) - sum(ns for _, ns in of_a.values())
    changes, spread, reasons = dict[str, float](), dict[str, float](), list[str]()
    for mode in MODES:
        a, b = (_sum(calls, times[side, mode], side, reasons) for side, calls in (("A", of_a), ("B", of_b)))
        if a and b:
            changes[mode], spread[mode] = b[0] - a[0], a[1] + b[1]
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


def _sum(calls: Calls, times: Times, side: str, reasons: list[str]) -> tuple[float, float] | None:
    """Replayed ns per unit of all calls, and its spread; None where it is not known, and why."""
    ns = spread = 0.0
    for (op, dims, _, kernel), (n, _ns) in calls.items():
        time = times.get((op, _normal(dims), kernel))
        if time is None:
            reasons.append(f"{side}: {op or 'a launch without a known op'} was not replayed")
            return None
        if time.same != EXACT:
            instead = f", this torch launches {time.launched}" if time.launched else ""
            reasons.append(f"{side}: {op} did not replay as the same kernel ({time.same}{instead})")
            return None
        ns, spread = ns + n * time.ns, spread + n * time.spread_ns
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
    verdict = AROUND if memory else OUTSIDE
    if max(share["hot"], share["cold"]) >= SHARE:
        verdict = KERNEL
    elif share["in-order"] >= SHARE:
        verdict = CACHES
    return verdict, f"of the recorded change come back: {words}"
