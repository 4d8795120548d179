"""Why the GPU was idle within a unit: every gap has one cause, and the causes add up to the idle time.

The operation that ends a gap says: it was launched only after the GPU had run dry (the host was late, perhaps
because it had waited for the GPU), or it was queued already (a dependency, a copy, the launch itself).
"""

from __future__ import annotations

import numpy as np

from lab.compare.side import Work

CAUSES = ("idle_late", "idle_wait", "idle_queued", "idle_unknown")
CAUSE_WORDS = {
    "idle_late": "because the host launched late",
    "idle_wait": "after the host had waited for the GPU",
    "idle_queued": "between queued operations",
    "idle_unknown": "before operations whose launch was not recorded",
}


def idle_of(work: Work, rows: np.ndarray, busy: np.ndarray) -> dict[str, int]:
    """ns of each of CAUSES in the gaps of `busy` (k, 2), the union of the operations `rows`, by start."""
    if len(busy) < 2:
        return dict.fromkeys(CAUSES, 0)
    begin, end = busy[:-1, 1], busy[1:, 0]
    next_op = rows[np.searchsorted(work.start_ns[rows], end)]
    is_known = work.launch_known[next_op]
    launched = np.where(is_known, work.launched_ns[next_op], begin)
    late = np.clip(launched - begin, 0, end - begin)
    waited = _waited(work.waits_ns, begin, np.maximum(launched, begin))
    return {
        "idle_late": int(late[is_known & ~waited].sum()),
        "idle_wait": int(late[is_known & waited].sum()),
        "idle_queued": int((end - begin - late)[is_known].sum()),
        "idle_unknown": int((end - begin)[~is_known].sum()),
    }


def _waited(waits: np.ndarray, begin: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Whether the host waited as each gap began and came back before the next launch (n,)."""
    if not len(waits):
        return np.zeros(len(begin), dtype=bool)
    call = np.minimum(np.searchsorted(waits[:, 1], begin), len(waits) - 1)
    came_back: np.ndarray = (waits[call, 1] >= begin) & (waits[call, 0] <= begin) & (waits[call, 1] <= until)
    return came_back
