"""How much later a rank's host launches than the other hosts, counted from the begins of their steps."""

from __future__ import annotations

import numpy as np

from lab.recordings.ranks.common import Together, launched_in
from lab.stats.intervals import overlap


def host_lateness_ns(together: Together, step: int) -> dict[int, float]:
    """Rank -> ns by which its host falls behind the median of the others' in a step.

    Only ranks with a launch for every operation, and with others that launch as many, have one. Where hosts
    wait in mid-step (for their GPUs, say) falling behind is counted from launch to launch: a wait in which
    the others catch up takes nothing back.
    """
    after: dict[int, np.ndarray] = {}
    waits = False
    for index, work in enumerate(together.works):
        window, rows = together.window(index, step), launched_in(together, index, step)
        if window is None or not len(rows) or (work.call_end[rows] < 0).any():
            continue
        after[work.rank] = work.call_end[rows] - window[0]
        span = np.array([[window[0], int(work.call_begin[rows].max())]], dtype=np.int64)
        waits |= bool(overlap(span, work.blocking_calls)[0])
    found = {}
    for rank, mine in after.items():
        others = [theirs for other, theirs in after.items() if other != rank and len(theirs) == len(mine)]
        if others:
            behind = mine - np.median(others, axis=0)
            grown = np.maximum(np.diff(behind, prepend=0.0), 0).sum() if waits else behind.max()
            found[rank] = max(0.0, float(grown))
    return found
