"""Who launched what: labelled calls under the profiler, and what the GPU did for each of them."""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lab.rooms.kernels.replay.args import Launch
from lab.rooms.kernels.replay.trace import KINDS, OPS, RUNTIME, decode_trace, event_args, launch_of

LABEL = "lab#"


class Seen(msgspec.Struct, frozen=True):
    """What one labelled call did: its launches in the GPU's order, us each; on a CPU the call's own time."""

    launches: tuple[Launch, ...]
    dur_us: tuple[float, ...]
    op_us: float = 0.0


class Observer:
    """Collects calls made inside `label(...)` while `watching()`; `seen` maps each label to what it did, once an entry."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seen: dict[str, list[Seen]] = defaultdict(list)

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
        """Mark the calls inside; a label may be used again and again."""
        return record_function(LABEL + text)

    def _read(self, path: Path) -> None:
        events = [event for event in decode_trace(path).events if event.ph == "X"]
        marks = sorted(
            (
                (e.ts, e.ts + e.dur, e.name[len(LABEL) :])
                for e in events
                if e.name.startswith(LABEL) and not e.cat.startswith("gpu_")
            ),
            key=lambda mark: mark[0],
        )
        calls = {event_args(e).correlation: e.ts for e in events if e.cat.lower() in RUNTIME}
        work: dict[int, list[tuple[float, float, Launch]]] = defaultdict(list)
        for event in events:
            if event.cat.lower() in KINDS:
                args = event_args(event)
                place = _inside(marks, calls.get(args.correlation, -1.0))
                if place >= 0:
                    work[place].append((event.ts, event.dur, launch_of(event, args)))
        op_us = _op_times(marks, events)
        for place, (_, _, name) in enumerate(marks):
            done = sorted(work[place], key=lambda one: one[0])
            self.seen[name].append(
                Seen(tuple(one[2] for one in done), tuple(one[1] for one in done), op_us[place])
            )


def _op_times(marks: list[tuple[float, float, str]], events: list[Any]) -> list[float]:
    """The longest op inside each mark, us: the call itself, without what surrounds it."""
    longest = [0.0] * len(marks)
    for event in events:
        if event.cat.lower() in OPS and not event.name.startswith(LABEL):
            place = _inside(marks, event.ts)
            if place >= 0:
                longest[place] = max(longest[place], event.dur)
    return longest


def _inside(marks: list[tuple[float, float, str]], ts: float) -> int:
    """Place of the mark around a time, or -1. Marks do not overlap."""
    low, high = 0, len(marks)
    while low < high:
        middle = (low + high) // 2
        if marks[middle][0] <= ts:
            low = middle + 1
        else:
            high = middle
    return low - 1 if low and ts <= marks[low - 1][1] else -1


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
