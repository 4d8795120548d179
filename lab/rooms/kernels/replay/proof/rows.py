"""Whether a replayed call launched the same kernels as the recorded one.

A launch counts as replayed only if its kernel's name, grid, block and shared memory equal the original's. Ops
that launch several kernels are compared as a group, in order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from lab.core.words import plural
from lab.perfmodel.classes import class_of_launch
from lab.recordings.names import short_name
from lab.rooms.kernels.replay.args import (
    SOURCES,
    CallRun,
    Launch,
    RawReplay,
    ReplayPlan,
    Signature,
    SignatureRun,
)
from lab.stats.effects import median_ratio_ci

# How the launches of a call compare with the recorded ones.
OP_ONLY = "op called again, no kernel"  # on a CPU: nothing was launched, so nothing is proven
EXACT, GEOMETRY, OTHER = "exact", "other geometry", "other kernel"
NONE, VARIED, NOT_RUN = "nothing launched", "varied", "not replayed"
REBUILT = ("ran", "shapes")  # statuses of calls whose arguments were made again


class Row(msgspec.Struct, kw_only=True):
    """One launch of one signature. Times in us; None if there is nothing to compare."""

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
    us: dict[str, Any] | None  # {"median": us, "ci": [low, high]}; 95 %, by bootstrap of the ratio
    same_kernel: str
    err_pct: float | None
    arg_src: str
    origin: str
    launched: str  # the kernel the replay launched if it is another one
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

    def percent(self, status: str, unit: str) -> float:
        part, total = getattr(self, f"{status}_{unit}"), getattr(self, unit)
        return 100.0 * part / total if total else math.nan


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
        """How far the replayed sum is off, over the launches that can be compared, in percent."""
        return 100.0 * (self.replay_sum_us / self.compared_us - 1) if self.compared_us else math.nan


class Result(msgspec.Struct, kw_only=True):
    """replay.json."""

    mode: str
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


@dataclass
class CallProof:
    """What became of one call of the plan: how its launches compare, and their times per pass."""

    call: int  # index in the plan
    same: str
    dur_us: Sequence[Sequence[float]] = ()
    launched: tuple[Launch, ...] = ()


def call_proofs(plan: ReplayPlan, raw: RawReplay) -> list[list[CallProof]]:
    """For each signature, its calls.

    A call not made in order is represented by the signature called by itself.
    """
    proofs: list[list[CallProof]] = [[] for _ in plan.signatures]
    in_order = {call.place: call for call in raw.calls}
    for index, call in enumerate(plan.calls):
        signature = plan.signatures[call.sig]
        if index in in_order:
            proof = _in_order(signature, in_order[index], raw, index)
        else:
            proof = _alone(signature, raw.signatures[call.sig], raw, index)
        proofs[call.sig].append(proof)
    return proofs


def _in_order(signature: Signature, run: CallRun, raw: RawReplay, index: int) -> CallProof:
    if run.launch_set < 0:
        return CallProof(index, VARIED)
    launched = raw.launch_sets[run.launch_set]
    return CallProof(index, compare(signature.launches, launched), run.dur_us, launched)


def _alone(signature: Signature, run: SignatureRun, raw: RawReplay, index: int) -> CallProof:
    if run.status != "ran" or (raw.device == "cpu" and signature.launches):
        return CallProof(index, NOT_RUN)
    return CallProof(index, compare(signature.launches, run.launches), run.dur_us, run.launches)


def compare(original: Sequence[Launch], replayed: Sequence[Launch]) -> str:
    """Compare two groups of launches in order: name, grid, block, shared memory; copies by kind and bytes."""
    if not original:
        return OP_ONLY if not replayed else OTHER
    if not replayed:
        return NONE
    if [(one.kind, one.name) for one in original] != [(one.kind, one.name) for one in replayed]:
        return OTHER
    pairs = zip(original, replayed, strict=True)
    return EXACT if all(_geometry(a) == _geometry(b) for a, b in pairs) else GEOMETRY


def _geometry(launch: Launch) -> tuple[Any, ...]:
    return (launch.grid, launch.block, launch.smem_bytes) if launch.kind == "kernel" else (launch.bytes,)


def rows_of(
    plan: ReplayPlan, raw: RawReplay, sig: int, proofs: list[CallProof], kernel_us: float
) -> Iterable[Row]:
    """The rows of signature `sig`; `kernel_us` is the recorded time of all launches."""
    signature, run = plan.signatures[sig], raw.signatures[sig]
    launches = signature.launches or (Launch(name=signature.op, kind="cpu_op"),)
    same = Counter(proof.same for proof in proofs)
    for position, launch in enumerate(launches):
        recorded = np.array([plan.calls[proof.call].dur_us[position] for proof in proofs])
        replayed = _replayed_us(proofs, position)
        yield Row(
            sig_id=signature.sig_id,
            position=position,
            op=signature.op,
            overload=run.overload,
            kernel=short_name(launch.name) if launch.kind == "kernel" else launch.name,
            class_=class_of_launch(launch.name, signature.op, launch.kind),
            kind=launch.kind,
            mode=raw.mode,
            count=len(proofs),
            trace_sum_us=round(float(recorded.sum()), 3),
            trace_median_us=round(float(np.median(recorded)), 4),
            time_share=float(recorded.sum()) / kernel_us if kernel_us else 0.0,
            n_ran=len(replayed),
            us=_us(recorded, replayed),
            same_kernel=same.most_common(1)[0][0] if same else NOT_RUN,
            err_pct=None if set(same) == {OP_ONLY} else _error(recorded, replayed),
            arg_src=worst_source(run),
            origin=origin_of(signature, run),
            launched=_other_name(launch, position, proofs),
            flags=_flags(run, same),
            name=launch.name,
        )


def _replayed_us(proofs: list[CallProof], position: int) -> np.ndarray:
    """The times of all passes that launched the same kernels, or on a CPU called the same op (n,)."""
    passes = [times for proof in proofs if proof.same in (EXACT, OP_ONLY) for times in proof.dur_us]
    return np.array([times[position] for times in passes if position < len(times)])


def _us(recorded: np.ndarray, replayed: np.ndarray) -> dict[str, Any] | None:
    """Median and its 95 % interval, from a bootstrap of the ratio to the recording."""
    if len(replayed) == 0:
        return None
    middle = float(np.median(replayed))
    positive = min(recorded.min(), replayed.min()) > 0
    low, high = median_ratio_ci(recorded, replayed, resamples=400) if positive else (math.nan, math.nan)
    base = float(np.median(recorded))
    interval = None if math.isnan(low) else [round(low * base, 4), round(high * base, 4)]
    return {"median": round(middle, 4), "ci": interval}


def _error(recorded: np.ndarray, replayed: np.ndarray) -> float | None:
    base = float(np.median(recorded))
    return round(100.0 * (float(np.median(replayed)) / base - 1), 3) if len(replayed) and base > 0 else None


def _other_name(launch: Launch, position: int, proofs: list[CallProof]) -> str:
    """What was launched instead: another kernel's name, or the same kernel's other geometry."""
    launched = [proof.launched[position:] for proof in proofs if proof.same in (OTHER, GEOMETRY)]
    instead = next((launches[0] for launches in launched if launches), None)
    if instead is None:
        return ""
    if instead.name != launch.name:
        return instead.name
    return f"grid {instead.grid} block {instead.block} smem {instead.smem_bytes}"


def _flags(run: SignatureRun, same: Counter[str]) -> list[str]:
    flags = []
    if len(same) > 1:
        flags = [f"{plural(n, 'call')}: {how}" for how, n in sorted(same.items()) if how != EXACT]
    if run.shapes_equal is False:
        flags.append("results have other shapes than recorded")
    return flags + ([run.reason] if run.reason and run.status != "ran" else [])


def worst_source(run: SignatureRun) -> str:
    return max((arg.src for arg in run.args), key=SOURCES.index, default=SOURCES[0])


def origin_of(signature: Signature, run: SignatureRun) -> str:
    return signature.origin if run.status != "unresolved" else "none"
