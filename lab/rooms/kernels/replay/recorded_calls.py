"""recorded calls"""

from __future__ import annotations

from pathlib import Path

from lab.rooms.kernels.catalogue.execution_trace import Node
from lab.rooms.kernels.replay.trace import Event, Op
from lab.rooms.kernels.schema import RecordedOp


class RecordedCalls:
    """The recorder's calls beside the trace's ops; empty without its file."""

    def __init__(self, ops: list[Op], marks: list[Event], path: Path | None) -> None:
        self.calls: list[RecordedOp] = []
        self._of = [-1] * len(ops)
        if path is not None:
            # Imported here: aligning needs numpy, and a trace alone does not.
            from lab.rooms.kernels.replay import recorded as replay_recorded

            self.calls = replay_recorded.read_recorded(path)
            self._of = replay_recorded.joined(ops, sorted(marks, key=lambda mark: mark.ts), self.calls)

    def call(self, place: int) -> RecordedOp | None:
        """The recorded call that an op of the trace stands for."""
        return self.calls[self._of[place]] if self._of[place] >= 0 else None

    def lifted(self, owners: dict[int, int], ops: list[Op], nodes: dict[int, Node]) -> dict[int, int]:
        """Without an execution trace, launches go to the recorded op around their owner: only its arguments are known."""
        if nodes or not self.calls:
            return owners
        return {launch: self._up(owner, ops) for launch, owner in owners.items()}

    def _up(self, owner: int, ops: list[Op]) -> int:
        place = owner
        while place >= 0 and self._of[place] < 0:
            place = ops[place].parent
        return place if place >= 0 else owner
