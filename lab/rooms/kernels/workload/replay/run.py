"""run"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from lab.core.files import write_atomic
from lab.rooms.kernels.replay.args import Launch, ReplayPlan
from lab.rooms.kernels.replay.raw import CallRun, RawReplay, SignatureRun
from lab.rooms.kernels.replay.schemas import Unresolved
from lab.rooms.kernels.workload.replay.build import Bound, bind, first_call, flat_outputs
from lab.rooms.kernels.workload.replay.machine import describe, progress, read_replay_plan, versions
from lab.rooms.kernels.workload.replay.observe import Observer, Seen, synchronize
from lab.rooms.kernels.workload.replay.order import InOrder, Ready, l2_bytes
from lab.rooms.kernels.workload.replay.overloads import resolved
from lab.rooms.kernels.workload.torch_switches import restored

RAW = "replay_raw.json"


def run(plan_path: Path, out: Path, *, mode: str, repeats: int, pace: str, device: torch.device) -> RawReplay:
    """Replay all of a plan. Raises BadDataError for a plan that cannot be read, StorageError when `out` is full."""
    plan = read_replay_plan(plan_path)
    write_atomic(
        out / "environment.json", msgspec.json.encode({"versions": versions(), "device": describe(device)})
    )
    raw = RawReplay(
        mode=mode, device=device.type, repeats=repeats, pace=pace, versions=versions(), **describe(device)
    )
    with torch.no_grad(), restored(plan.state) as unknown:
        raw.notes = (*raw.notes, *(f"this torch has no switch {name}" for name in unknown))
        replay = Replay(plan, device, repeats, pace)
        raw.signatures = replay.alone(mode)
        write_atomic(out / RAW, msgspec.json.encode(raw))
        if mode == "in-order" and (device.type == "cuda" or not plan.origin.has_kernels):
            raw.calls, raw.launch_sets = replay.in_order()
            write_atomic(out / RAW, msgspec.json.encode(raw))
    return raw


class Replay:
    """One plan on one device."""

    def __init__(self, plan: ReplayPlan, device: torch.device, repeats: int, pace: str) -> None:
        self.plan, self.device, self.repeats, self.pace = plan, device, repeats, pace
        self.ready: dict[int, Ready] = {}

    def alone(self, mode: str) -> tuple[SignatureRun, ...]:
        """Each signature by itself: can it be called, what does it launch, how long does it take hot or cold."""
        observer, runs = Observer(self.device), []
        flush = self._flush if mode == "cold" else lambda: None
        with observer.watching():
            for place in range(len(self.plan.signatures)):
                runs.append(self._one(place, observer, flush, 1 if mode == "in-order" else self.repeats))
        for place, one in enumerate(runs):
            if seen := observer.seen.get(f"alone{place}"):
                one.launches = seen[0].launches
                one.dur_us = tuple(s.dur_us if s.launches else (s.op_us,) for s in seen)
        progress(f"{sum(one.status == 'ran' for one in runs)} of {len(runs)} distinct calls ran")
        return tuple(runs)

    def _one(self, place: int, observer: Observer, flush: Callable[[], None], times: int) -> SignatureRun:
        signature = self.plan.signatures[place]
        done = SignatureRun(sig_id=signature.sig_id, status="unresolved", reason=signature.reason)
        try:
            done.overload, done.args = resolved(signature)
            bound, result = first_call(bind(signature.op, done.overload, done.args, self.device))
        except Unresolved as why:
            done.reason = str(why)
            return done
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            return self._shapes_only(done, signature.op, error)
        done.status, done.numbers_as_tensors = "ran", _took_tensors(bound.args, done)
        done.shapes_equal = None if signature.outs is None else shapes_of(result) == list(signature.outs)
        self.ready[place] = (signature.op, done.overload, done.args, done.numbers_as_tensors)
        fresh = refresher(signature.op, bound)
        for _ in range(times):
            fresh()
            flush()
            synchronize(self.device)
            with observer.label(f"alone{place}"):
                bound()
        return done

    def _shapes_only(self, done: SignatureRun, op: str, error: Exception) -> SignatureRun:
        """An op without a CPU kernel can still be checked by shapes; on a GPU there is no such excuse."""
        done.status, done.reason = (
            "failed",
            f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}",
        )
        if self.device.type == "cuda":
            return done
        try:
            first_call(bind(op, done.overload, done.args, torch.device("meta")))
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return done
        done.status = "shapes"
        return done

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
                if self.pace == "queue":
                    torch.cuda._sleep(int(2e8))  # type: ignore[no-untyped-call]  # the host gets ahead of the GPU meanwhile
                order.run(lambda place: observer.label(str(place)))
            progress(f"pass {turn + 1} of {self.repeats}: {len(order.steps)} calls")
        return collect(observer, [place for place, _, _ in order.steps])


def collect(
    observer: Observer, places: Sequence[int]
) -> tuple[tuple[CallRun, ...], tuple[tuple[Launch, ...], ...]]:
    """Per call what it launched and for how long, in every pass."""
    sets: dict[tuple[Launch, ...], int] = {}
    runs = []
    for place in places:
        seen: list[Seen] = observer.seen.get(str(place), [])
        kinds = {sets.setdefault(one.launches, len(sets)) for one in seen}
        times = tuple(one.dur_us if one.launches else (one.op_us,) for one in seen)
        runs.append(CallRun(place, kinds.pop() if len(kinds) == 1 else -1, times))
    return tuple(runs), tuple(sets)


def refresher(op: str, bound: Bound) -> Callable[[], object]:
    """Puts the first argument of an in-place op back, so that repeating it does not drift to inf."""
    target = bound.args[0] if bound.args else None
    if not op.endswith("_") or not isinstance(target, torch.Tensor) or 0 in target.stride():
        return lambda: None
    before = target.clone()
    return lambda: target.copy_(before)


def shapes_of(result: Any) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in flat_outputs(result)]


def _took_tensors(values: Sequence[Any], done: SignatureRun) -> bool:
    """Whether the Python numbers of this call had to go in as 0-dim tensors."""
    positional = [arg for arg in done.args if not arg.kwarg_only]
    return any(
        arg.tensor is not None and arg.tensor.number and isinstance(value, torch.Tensor)
        for arg, value in zip(positional, values, strict=True)
    )
