"""On a CPU: which ops stand in for launches."""

from __future__ import annotations

import numpy as np

from lab.perfmodel.classes import moves_no_data, works_itself


def working_ops(names: np.ndarray, parent: np.ndarray, ts_ns: np.ndarray) -> np.ndarray:
    """Rows (n,) of the ops that own work, by start: known workers, and ops without a worker inside."""
    works = ~np.array([moves_no_data(name) for name in names], dtype=bool)
    works_alone = np.array([works_itself(name) for name in names], dtype=bool)
    inside_own, has_worker = _surroundings(works, works_alone, parent)
    rows = np.flatnonzero(works & ~inside_own & (works_alone | ~has_worker))
    by_start: np.ndarray = rows[np.argsort(ts_ns[rows], kind="stable")]
    return by_start


def _surroundings(
    works: np.ndarray, works_alone: np.ndarray, parent: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(lies inside an op that works itself (n,), has a working op inside (n,)).

    Climbs from every op to the op around it, all ops at once, until no op is left below another.
    """
    inside_own, has_worker = np.zeros(len(works), dtype=bool), np.zeros(len(works), dtype=bool)
    above = parent.copy()
    climbing = np.flatnonzero(above >= 0)
    while len(climbing):
        up = above[climbing]
        inside_own[climbing] |= works_alone[up]
        has_worker[up[works[climbing]]] = True
        above[climbing] = parent[up]
        climbing = climbing[above[climbing] >= 0]
    return inside_own, has_worker
