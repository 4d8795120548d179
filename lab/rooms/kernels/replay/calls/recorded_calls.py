"""The dispatch recorder's calls, joined to the ops of a trace as the catalogue aligns them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.rooms.kernels.catalogue.align import align
from lab.rooms.kernels.replay.calls.recording import Recording
from lab.rooms.kernels.schema import RecordedOp
from lab.rooms.kernels.trails import read_lines


class RecordedCalls:
    """The recorded call of each op; empty without a recorder's file."""

    def __init__(self, recording: Recording, path: Path | None) -> None:
        self.calls: list[RecordedOp] = []
        self._ops = recording.ops
        self._of = [-1] * len(recording.ops)
        if path is not None:
            self.calls = list(read_lines(path, RecordedOp))
            self._of = _joined(recording, self.calls)

    def call(self, op: int) -> RecordedOp | None:
        """The recorded call of the op at an index of the trace's ops."""
        return self.calls[self._of[op]] if self._of[op] >= 0 else None

    def recorded_owners(self, owners: dict[int, int]) -> dict[int, int]:
        """Each launch with the nearest recorded op around its owner, because only its arguments are known."""
        return {launch: self._recorded_above(owner) for launch, owner in owners.items()}

    def _recorded_above(self, owner: int) -> int:
        """The nearest recorded op around `owner`, or `owner` itself if there is none."""
        op = owner
        while op >= 0 and self._of[op] < 0:
            op = self._ops[op].parent
        return op if op >= 0 else owner


def _joined(recording: Recording, calls: list[RecordedOp]) -> list[int]:
    """Index into `calls` of each op of the trace, -1 for ops without a recorded call."""
    operators = recording.capture.operators
    names = recording.capture.text(operators.name_id)
    spans = [
        [recording.zero_ns + round(us * 1000) for us in (mark.start_us, mark.end_us)]
        for mark in recording.marks
    ]
    found = align(operators, names, np.array(spans, dtype=np.int64).reshape(-1, 2), calls).tolist()
    return [found[op.row] for op in recording.ops]
