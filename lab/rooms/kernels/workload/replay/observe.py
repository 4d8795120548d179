"""Labelled calls under the profiler, and what the GPU did for each of them."""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lab.recordings.calls import launch_calls
from lab.recordings.capture import OP
from lab.recordings.kineto import read_kineto
from lab.recordings.tables import Table
from lab.rooms.kernels.replay.args import Launch
from lab.rooms.kernels.replay.calls.launches import launches_of
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
