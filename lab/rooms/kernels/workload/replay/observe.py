"""Labelled calls under the profiler, and what the GPU did for each of them."""

from __future__ import annotations

import contextlib
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lab.rooms.kernels.replay.args import Launch
from lab.rooms.kernels.replay.calls.trace import KINDS, OPS, RUNTIME, decode_trace, event_args, launch_of
from lab.rooms.kernels.workload.replay.machine import synchronize

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
        """Mark the calls inside; a label may be used repeatedly."""
        return record_function(LABEL + text)

    def _read(self, path: Path) -> None:
        events = [event for event in decode_trace(path).events if event.ph == "X"]
        labelled = [e for e in events if e.name.startswith(LABEL) and not e.cat.startswith("gpu_")]
        marks = [(e.ts, e.ts + e.dur, e.name.removeprefix(LABEL)) for e in labelled]
        marks.sort(key=lambda mark: mark[0])
        calls = {event_args(e).correlation: e.ts for e in events if e.cat.lower() in RUNTIME}
        work: dict[int, list[tuple[float, float, Launch]]] = defaultdict(list)
        for event in events:
            if event.cat.lower() in KINDS:
                args = event_args(event)
                index = _mark_around(marks, calls.get(args.correlation, -1.0))
                if index >= 0:
                    work[index].append((event.ts, event.dur, launch_of(event, args)))
        op_us = _op_times(marks, events)
        for index, (_, _, name) in enumerate(marks):
            done = sorted(work[index], key=lambda one: one[0])
            launches, dur_us = tuple(one[2] for one in done), tuple(one[1] for one in done)
            self.seen[name].append(Seen(launches, dur_us, op_us[index]))


def _op_times(marks: list[tuple[float, float, str]], events: list[Any]) -> list[float]:
    """The longest op inside each mark, us: the call itself, without its surroundings."""
    longest = [0.0] * len(marks)
    for event in events:
        if event.cat.lower() in OPS and not event.name.startswith(LABEL):
            index = _mark_around(marks, event.ts)
            if index >= 0:
                longest[index] = max(longest[index], event.dur)
    return longest


def _mark_around(marks: list[tuple[float, float, str]], ts: float) -> int:
    """Index of the mark around a time, or -1. Marks do not overlap."""
    index = bisect_right(marks, ts, key=lambda mark: mark[0]) - 1
    return index if index >= 0 and ts <= marks[index][1] else -1
