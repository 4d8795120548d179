"""Whether a replayed call launched the same kernels as the recorded one.

A launch counts as replayed only if its kernel's name, grid, block and shared memory equal the original's. Ops
that launch several kernels are compared as a group, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.rooms.kernels.replay.args import Launch, ReplayPlan, Signature
from lab.rooms.kernels.replay.proof.result import EXACT, GEOMETRY, NONE, NOT_RUN, OP_ONLY, OTHER, VARIED
from lab.rooms.kernels.replay.raw import CallRun, RawReplay, SignatureRun


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
