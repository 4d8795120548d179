"""One replay: each signature by itself, then the recording in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from lab.core.files import write_atomic
from lab.core.words import plural
from lab.rooms.kernels.cures import first_line
from lab.rooms.kernels.replay.args import CallRun, Launch, RawReplay, ReplayPlan, SignatureRun
from lab.rooms.kernels.replay.arguments.schemas import Unresolved
from lab.rooms.kernels.workload.replay.build import Bound, bind, first_call, flat_outputs, resolved
from lab.rooms.kernels.workload.replay.machine import (
    describe,
    known_versions,
    l2_bytes,
    progress,
    read_replay_plan,
    synchronize,
)
from lab.rooms.kernels.workload.replay.observe import Observer, Seen
from lab.rooms.kernels.workload.replay.order import InOrder, Ready
from lab.rooms.kernels.workload.torch_switches import restored

RAW = "replay_raw.json"
# What torch raises for a call that it cannot make.
CALL_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)


def run(plan_path: Path, out: Path, *, mode: str, repeats: int, device: torch.device) -> RawReplay:
    """Replay a whole plan.

    Raises BadDataError for a plan that cannot be read, StorageError if `out` is full.
    """
    plan = read_replay_plan(plan_path)
    write_atomic(
        out / "environment.json",
        msgspec.json.encode({"versions": known_versions(), "device": describe(device)}),
    )
    raw = RawReplay(
        mode=mode, device=device.type, repeats=repeats, versions=known_versions(), **describe(device)
    )
    with torch.no_grad(), restored(plan.state) as unknown:
        raw.notes = (*raw.notes, *(f"this torch has no switch {name}" for name in unknown))
        replay = Replay(plan, device, repeats)
        raw.signatures = replay.alone(mode)
        write_atomic(out / RAW, msgspec.json.encode(raw))
        if mode == "in-order" and (device.type == "cuda" or not plan.origin.has_kernels):
            raw.calls, raw.launch_sets = replay.in_order()
            raw.notes = (*raw.notes, *replay.notes)
            write_atomic(out / RAW, msgspec.json.encode(raw))
    return raw


class Replay:
    """One plan on one device."""

    def __init__(self, plan: ReplayPlan, device: torch.device, repeats: int) -> None:
        self.plan, self.device, self.repeats = plan, device, repeats
        self.ready: dict[int, Ready] = {}
        self.notes: tuple[str, ...] = ()

    def alone(self, mode: str) -> tuple[SignatureRun, ...]:
        """Each signature by itself: whether it runs, what it launches, how long it takes hot or cold."""
        observer, runs = Observer(self.device), []
        flush = self._flush if mode == "cold" else lambda: None
        with observer.watching():
            for sig in range(len(self.plan.signatures)):
                runs.append(self._one(sig, observer, flush, 1 if mode == "in-order" else self.repeats))
        for sig, outcome in enumerate(runs):
            if passes := observer.outcomes.get(f"alone{sig}"):
                outcome.launches = passes[0].launches
                outcome.dur_us = _times(passes)
        ran = sum(outcome.status == "ran" for outcome in runs)
        progress(f"{ran:,} of {plural(len(runs), 'distinct call')} ran")
        return tuple(runs)

    def _one(self, sig: int, observer: Observer, flush: Callable[[], None], times: int) -> SignatureRun:
        signature = self.plan.signatures[sig]
        outcome = SignatureRun(sig_id=signature.sig_id, status="unresolved", reason=signature.reason)
        try:
            outcome.overload, outcome.args = resolved(signature)
            bound, result = first_call(bind(signature.op, outcome.overload, outcome.args, self.device))
        except Unresolved as reason:
            outcome.reason = str(reason)
            return outcome
        except CALL_ERRORS as error:
            return self._shapes_only(outcome, signature.op, error)
        outcome.status, outcome.numbers_as_tensors = "ran", _took_tensors(bound.args, outcome)
        outcome.shapes_equal = None if signature.outs is None else shapes_of(result) == list(signature.outs)
        self.ready[sig] = Ready(signature.op, outcome.overload, outcome.args, outcome.numbers_as_tensors)
        fresh = refresher(signature.op, bound)
        for _ in range(times):
            fresh()
            flush()
            synchronize(self.device)
            with observer.label(f"alone{sig}"):
                bound()
        return outcome

    def _shapes_only(self, outcome: SignatureRun, op: str, error: Exception) -> SignatureRun:
        """A failed call; on a CPU, which may lack the op's kernel, shapes are checked on the meta device."""
        outcome.status, outcome.reason = "failed", f"{type(error).__name__}: {first_line(error)[:200]}"
        if self.device.type == "cuda":
            return outcome
        try:
            first_call(bind(op, outcome.overload, outcome.args, torch.device("meta")))
        except CALL_ERRORS:
            return outcome
        outcome.status = "shapes"
        return outcome

    def _flush(self) -> None:
        if self.device.type == "cuda":
            torch.empty(2 * l2_bytes(self.device), dtype=torch.uint8, device=self.device).zero_()

    def in_order(self) -> tuple[tuple[CallRun, ...], tuple[tuple[Launch, ...], ...]]:
        """One pass to settle memory, then `repeats` passes under the profiler."""
        order = InOrder(self.plan, self.ready, self.device)
        order.once()
        observer = Observer(self.device)
        for turn in range(self.repeats):
            with observer.watching():
                order.run(lambda call: observer.label(str(call)))
            progress(f"pass {turn + 1} of {self.repeats}: {plural(len(order.steps), 'call')}")
        if order.memory.parted:
            results = plural(order.memory.parted, "result")
            self.notes = (
                f"{results} came back in memory that the recording keeps apart: the older tensor got a "
                "buffer of its own, so caches may differ from the model's there",
            )
        return collect(observer, [call for call, _, _ in order.steps])


def collect(
    observer: Observer, calls: Sequence[int]
) -> tuple[tuple[CallRun, ...], tuple[tuple[Launch, ...], ...]]:
    """For each call, by its index in the plan, what it launched and how long it took, in every pass."""
    sets: dict[tuple[Launch, ...], int] = {}
    runs = []
    for call in calls:
        passes: list[Seen] = observer.outcomes.get(str(call), [])
        kinds = {sets.setdefault(kernel_pass.launches, len(sets)) for kernel_pass in passes}
        runs.append(CallRun(call, kinds.pop() if len(kinds) == 1 else -1, _times(passes)))
    return tuple(runs), tuple(sets)


def _times(passes: Sequence[Seen]) -> tuple[tuple[float, ...], ...]:
    """Per pass, us of each launch; without launches, of the op."""
    return tuple(
        kernel_pass.dur_us if kernel_pass.launches else (kernel_pass.op_us,) for kernel_pass in passes
    )


def refresher(op: str, bound: Bound) -> Callable[[], object]:
    """A function that restores the first argument of an in-place op, so that repeats do not drift."""
    target = bound.args[0] if bound.args else None
    if not op.endswith("_") or not isinstance(target, torch.Tensor) or 0 in target.stride():
        return lambda: None
    original = target.clone()
    return lambda: target.copy_(original)


def shapes_of(result: Any) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in flat_outputs(result)]


def _took_tensors(values: Sequence[Any], outcome: SignatureRun) -> bool:
    """Whether the Python numbers of this call had to go in as 0-dim tensors."""
    positional = [arg for arg in outcome.args if not arg.kwarg_only]
    return any(
        arg.tensor is not None and arg.tensor.number and isinstance(value, torch.Tensor)
        for arg, value in zip(positional, values, strict=True)
    )
