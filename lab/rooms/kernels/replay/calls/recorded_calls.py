"""The dispatch recorder's calls, joined to the ops of a trace."""

from __future__ import annotations

from pathlib import Path

from lab.rooms.kernels.replay.calls.trace import Event, Op
from lab.rooms.kernels.schema import RecordedOp
from lab.rooms.kernels.trails import read_lines


class RecordedCalls:
    """The recorded call of each op; empty without a recorder's file."""

    def __init__(self, ops: list[Op], marks: list[Event], path: Path | None) -> None:
        self.calls: list[RecordedOp] = []
        self._of = [-1] * len(ops)
        if path is not None:
            # Imported here: aligning needs numpy, a trace alone does not.
            from lab.rooms.kernels.replay.calls.alignment import join

            self.calls = list(read_lines(path, RecordedOp))
            self._of = join(ops, sorted(marks, key=lambda mark: mark.ts), self.calls)

    def call(self, op: int) -> RecordedOp | None:
        """The recorded call of the op at an index of the trace's ops."""
        return self.calls[self._of[op]] if self._of[op] >= 0 else None

    def recorded_owners(self, owners: dict[int, int], ops: list[Op]) -> dict[int, int]:
        """Each launch with the nearest recorded op around its owner, because only its arguments are known."""
        return {launch: self._recorded_above(owner, ops) for launch, owner in owners.items()}

    def _recorded_above(self, owner: int, ops: list[Op]) -> int:
        """The nearest recorded op around `owner`, or `owner` itself if there is none."""
        op = owner
        while op >= 0 and self._of[op] < 0:
            op = ops[op].parent
        return op if op >= 0 else owner
