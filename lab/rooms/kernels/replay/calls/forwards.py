"""The forwards of a recording: their names, and how long the GPU was busy in each."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from lab.rooms.kernels.replay.args import Call, Forward
from lab.rooms.kernels.replay.calls.trace import FORWARD, Event, Op


class ForwardSpans:
    """The marked forwards by the host's time, and one more for everything outside of them."""

    def __init__(self, marks: list[Event], ops: list[Op]) -> None:
        self.marks = sorted(marks, key=lambda mark: mark.ts)
        self._starts = [mark.ts for mark in self.marks]
        self.outside = len(self.marks)
        self._span = (ops[0].event.ts, max(op.event.ts + op.event.dur for op in ops))

    def at(self, ts: float) -> int:
        """Index of the forward that runs at a time."""
        index = bisect_right(self._starts, ts) - 1
        if index >= 0 and ts <= self.marks[index].ts + self.marks[index].dur:
            return index
        return self.outside

    def finished(self, calls: Sequence[Call], on_gpu: bool) -> tuple[Forward, ...]:
        """Names, phases, and the union of the GPU's work that each span launched."""
        spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for call in calls:
            spans[call.forward] += [(ts, ts + dur) for ts, dur in zip(call.ts_us, call.dur_us, strict=True)]
        named = [(mark.name, FORWARD.match(mark.name)[1], mark.dur) for mark in self.marks]  # type: ignore[index]
        rest = ("between", "between", 0.0) if self.marks else ("all", "all", self._span[1] - self._span[0])
        return tuple(
            Forward(
                name=name,
                phase=phase,
                wall_us=round(wall, 3),
                busy_us=round(_covered(spans[index]), 3) if on_gpu else 0.0,
            )
            for index, (name, phase, wall) in enumerate([*named, rest])
        )


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of [start, end) spans."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total
