"""Rule S over the ranks of one job: a rank that stops early, or has no GPU rows where the others have some.

Unequal numbers of rows prove nothing: pipeline stages and sharded tables make them. Clocks of ranks differ,
so a rank's end counts from the start of its own first step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.core.words import plural
from lab.recordings.capture import Capture
from lab.recordings.lacks import Lack
from lab.recordings.phase_names import is_step
from lab.stats import robust

FEWEST = 2


def lacks_over_ranks(shapes: Sequence[Shape]) -> list[tuple[Lack, ...]]:
    """What each rank's recording lacks when compared with the others'; signs, no proofs, hence unknown."""
    return [_lacks(index, shapes) for index in range(len(shapes))]


class Shape:
    """One rank: its GPU rows, the names of its steps, ns from its first step to its last GPU row."""

    def __init__(self, rows: int, steps: tuple[str, ...], reach_ns: int, step_ns: int) -> None:
        self.rows, self.steps, self.reach_ns, self.step_ns = rows, steps, reach_ns, step_ns


def shape_of(capture: Capture) -> Shape:
    wanted = [i for i, text in enumerate(capture.strings) if is_step(text)]
    rows = np.flatnonzero(np.isin(capture.ranges.text_id, wanted))
    rows = rows[np.argsort(capture.ranges.start_ns[rows], kind="stable")]
    steps = tuple(capture.name(int(i)) for i in capture.ranges.text_id[rows])
    starts = capture.ranges.start_ns[rows]
    end_ns = int(capture.ops.end_ns.max()) if len(capture.ops) else 0
    reach_ns = end_ns - int(starts[0]) if len(starts) and len(capture.ops) else -1
    step_ns = int(robust.median(capture.ranges.end_ns[rows] - starts)) if len(rows) else 0
    return Shape(len(capture.ops), steps, reach_ns, step_ns)


def _lacks(index: int, shapes: Sequence[Shape]) -> tuple[Lack, ...]:
    shape, peers = shapes[index], [peer for i, peer in enumerate(shapes) if i != index]
    if len(shapes) < FEWEST:
        return ()
    if not shape.rows and any(peer.rows for peer in peers):
        text = f"this rank has no GPU row, {sum(peer.rows > 0 for peer in peers)} of the others have some"
        return (Lack("gpu", "all", "S", 0, 0, 0, None, text, unknown=True),)
    longest = max((peer.steps for peer in peers), key=len)
    absent = [name for name in longest if name not in shape.steps]
    # Profilers of ranks need not stop together: one peer that is as short makes this end a usual one.
    if absent and shape.steps and all(len(peer.steps) > len(shape.steps) for peer in peers):
        n, of = len(absent), len(longest)
        text = f"{n} of {plural(of, 'step')} that every other rank has are not here ({absent[0]} first)"
        return (Lack("gpu", "tail", "S", 0, n, of, None, text, unknown=True),)
    # Reach counts from the first step, so ranks compare only where they have the same steps.
    reaches = [peer.reach_ns for peer in peers if peer.reach_ns >= 0 and peer.steps == shape.steps]
    if shape.reach_ns < 0 or not reaches or not shape.step_ns:
        return ()
    # Against the shortest of the others and by more than a step: less is the usual skew.
    short_ns = min(reaches) - shape.reach_ns
    if short_ns <= shape.step_ns:
        return ()
    text = f"this rank's GPU rows end {short_ns / 1e6:.3f} ms before those of every other rank"
    return (Lack("gpu", "tail", "S", 0, 0, 0, None, text, unknown=True),)
