"""The times of one training step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import record_function


class StepClock:
    """Times the ranges of one step, in ms since its start: by GPU events, or by the host's clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.begin: Any = None
        self.marks: list[tuple[str, Any, Any]] = []

    def start(self) -> None:
        """Begin a step and forget the last one."""
        self.begin, self.marks = self._now(), []

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Time the work launched inside, and name it in the trace."""
        begin = self._now()
        with record_function(name):
            yield
        self.marks.append((name, begin, self._now()))

    def summary(self, index: int, phase: str) -> dict[str, Any]:
        """The step's `profile` record; waits for the GPU."""
        end = self._now()
        if self.on_gpu:
            torch.cuda.synchronize()
        ranges = [
            {"name": name, "start_ms": self._since_begin(start), "end_ms": self._since_begin(stop)}
            for name, start, stop in self.marks
        ]
        markers = [{"name": f"profiler_{phase}", "at_ms": 0.0}]
        return {
            "index": index,
            "total_ms": self._since_begin(end),
            "ranges": ranges,
            "markers": markers,
            "overlap": {},
        }

    def _now(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _since_begin(self, mark: Any) -> float:
        elapsed_ms: float = self.begin.elapsed_time(mark) if self.on_gpu else (mark - self.begin) * 1e3
        return round(elapsed_ms, 4)
