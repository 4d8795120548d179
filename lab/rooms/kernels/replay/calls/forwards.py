"""The forwards of a recording: their names, and how long the GPU was busy in each."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from lab.rooms.kernels.replay.args import Call, Forward
from lab.rooms.kernels.replay.calls.recording import FORWARD, Recording


class ForwardSpans:
    """The marked forwards by the host's time, and one more for everything outside of them."""

    def __init__(self, recording: Recording) -> None:
        self.marks, ops = recording.marks, recording.ops
        self._starts = [mark.start_us for mark in self.marks]
        self.outside = len(self.marks)
        self._length_us = max(op.start_us + op.dur_us for op in ops) - ops[0].start_us

    def at(self, ts_us: float) -> int:
        """Index of the forward that runs at a time."""
        index = bisect_right(self._starts, ts_us) - 1
        if index >= 0 and ts_us <= self.marks[index].end_us:
            return index
        return self.outside

    def finished(self, calls: Sequence[Call], on_gpu: bool) -> tuple[Forward, ...]:
        """Names, phases, and the union of the GPU's work that each span launched."""
        spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for call in calls:
            spans[call.forward] += [(ts, ts + dur) for ts, dur in zip(call.ts_us, call.dur_us, strict=True)]
        named = [
            (mark.name, FORWARD.match(mark.name)[1], mark.end_us - mark.start_us)  # type: ignore[index]
            for mark in self.marks
        ]
        outside = ("between", "between", 0.0) if self.marks else ("all", "all", self._length_us)
        return tuple(
            Forward(
                name=name,
                phase=phase,
                wall_us=round(wall, 3),
                busy_us=round(_covered(spans[index]), 3) if on_gpu else 0.0,
            )
            for index, (name, phase, wall) in enumerate([*named, outside])
        )


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of [start, end) spans."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total
