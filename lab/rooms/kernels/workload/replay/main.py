"""Replay the ops of a recording on this machine.

    python -m lab.rooms.kernels.workload.replay.main --plan replay_plan.json --out DIR --mode hot

Every signature is called by itself first, as proof: what it launches is later compared with the original. hot
repeats it over the same buffers, cold after the L2 cache was overwritten, in-order runs the whole recording
again. Durations are the profiler's kernel durations, as the original's are; no host clock is used on a GPU.
Writes `replay_raw.json` and `environment.json` into DIR, each whole or not at all.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lab.core.files import write_atomic
from lab.core.words import plural
from lab.errors import GpuError
from lab.recordings.calls import launch_calls
from lab.recordings.capture import OP
from lab.recordings.kineto import read_kineto
from lab.recordings.tables import Table
from lab.rooms.kernels.cures import first_line
from lab.rooms.kernels.replay.args import CallRun, Launch, RawReplay, ReplayPlan, SignatureRun
from lab.rooms.kernels.replay.arguments.schemas import Unresolved
from lab.rooms.kernels.replay.calls.launches import launches_of
from lab.rooms.kernels.workload.replay.build import Bound, bind, first_call, flat_outputs, resolved
from lab.rooms.kernels.workload.replay.machine import (
    describe,
    known_versions,
    l2_bytes,
    progress,
    read_replay_plan,
    restored,
    synchronize,
)
from lab.rooms.kernels.workload.replay.order import InOrder, Ready
from lab.workload.start import start

MODES = ("hot", "cold", "in-order")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="lab.rooms.kernels.workload.replay", description="Replay recorded ops."
    )
    parser.add_argument("--plan", required=True, type=Path)
    parser.add_argument("--mode", choices=MODES, default="in-order")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    args, _ = start(parser, argv)
    device = pick(args.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # as recorded; threads on a shared machine make equal calls differ
    run(args.plan, args.out, mode=args.mode, repeats=args.repeats, device=device)


def pick(name: str) -> torch.device:
    """The requested device; auto is the GPU if there is one. Raises GpuError."""
    if name == "cuda" and not torch.cuda.is_available():
        raise GpuError(
            f"torch {torch.__version__} sees no GPU", fix="run in an image with GPU access, or --device cpu"
        )
    return torch.device("cuda", 0) if name != "cpu" and torch.cuda.is_available() else torch.device("cpu")


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


# Observing: labelled calls under the profiler, and what the GPU did for each of them.

LABEL = "lab#"


class Seen(msgspec.Struct, frozen=True):
    """What one labelled call did: launches in the GPU's order and their times; on a CPU the op's time."""

    launches: tuple[Launch, ...]
    dur_us: tuple[float, ...]
    op_us: float = 0.0


class Observer:
    """Collects calls made inside `label(...)` while `watching()`; `seen` has one entry per use of a label."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.outcomes: dict[str, list[Seen]] = defaultdict(list)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A profiler session; its trace is read when the block ends."""
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as session:
            yield
            synchronize(self.device)
        with tempfile.TemporaryDirectory(prefix="lab-replay-") as folder:
            path = Path(folder) / "trace.json"
            session.export_chrome_trace(str(path))
            self._read(path)

    def label(self, text: str) -> Any:
        """Mark the calls inside; a label may be used repeatedly."""
        return record_function(LABEL + text)

    def _read(self, path: Path) -> None:
        capture = read_kineto(path)
        names = capture.text(capture.ranges.text_id)
        labelled = np.array([name.startswith(LABEL) for name in names], dtype=bool)
        marks = capture.ranges.where(labelled)
        by_start = np.argsort(marks.start_ns, kind="stable")
        marks, labels = marks.take(by_start), names[labelled][by_start].tolist()
        call = launch_calls(capture)
        called = np.flatnonzero(call >= 0)
        index = _mark_around(marks, capture.api.start_ns[call[called]])
        rows, index = called[index >= 0], index[index >= 0]
        by_time = np.argsort(capture.ops.start_ns[rows], kind="stable")
        work: dict[int, list[tuple[Launch, float]]] = defaultdict(list)
        launches = launches_of(capture, rows[by_time])
        dur_us = (capture.ops.dur_ns[rows[by_time]] / 1000).tolist()
        for mark, launch, launch_us in zip(index[by_time].tolist(), launches, dur_us, strict=True):
            work[mark].append((launch, launch_us))
        op_us = _op_times(marks, capture.ranges.where(~labelled & (capture.ranges.kind == OP)))
        for mark, label in enumerate(labels):
            times = tuple(launch_us for _, launch_us in work[mark])
            outcome = Seen(tuple(launch for launch, _ in work[mark]), times, op_us[mark])
            self.outcomes[label.removeprefix(LABEL)].append(outcome)


def _op_times(marks: Table, operators: Table) -> list[float]:
    """The longest op inside each mark, us: the call itself, without its surroundings."""
    longest_ns = np.zeros(len(marks) + 1, dtype=np.int64)  # the last is outside all
    np.maximum.at(longest_ns, _mark_around(marks, operators.start_ns), operators.dur_ns)
    times: list[float] = (longest_ns[:-1] / 1000).tolist()
    return times


def _mark_around(marks: Table, ts_ns: np.ndarray) -> np.ndarray:
    """Index (n,) of the mark around each time, or -1. Marks do not overlap."""
    index = np.searchsorted(marks.start_ns, ts_ns, side="right") - 1
    inside = (index >= 0) & (ts_ns <= np.append(marks.end_ns, 0)[index])
    return np.where(inside, index, -1)


if __name__ == "__main__":
    main()
