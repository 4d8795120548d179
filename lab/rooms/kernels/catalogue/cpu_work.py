"""cpu work"""

from __future__ import annotations

import numpy as np

from lab.rooms.kernels.catalogue.classes import moves_no_data, works_itself


def working_ops(names: np.ndarray, parent: np.ndarray, ts_ns: np.ndarray) -> np.ndarray:
    """Rows (n,) of the CPU ops that own work, by start: those that do their own, else those without such inside them."""
    works = ~np.array([moves_no_data(name) for name in names], dtype=bool)
    own = np.array([works_itself(name) for name in names], dtype=bool)
    inside_own, has_worker = _looked_around(works, own, parent)
    rows = np.flatnonzero(works & ~inside_own & (own | ~has_worker))
    found: np.ndarray = rows[np.argsort(ts_ns[rows], kind="stable")]
    return found


def _looked_around(works: np.ndarray, own: np.ndarray, parent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(lies inside an op that works itself (n,), has a working op inside (n,)); by climbing from every op at once."""
    inside_own, has_worker = np.zeros(len(works), dtype=bool), np.zeros(len(works), dtype=bool)
    above = parent.copy()
    climbing = np.flatnonzero(above >= 0)
    while len(climbing):
        up = above[climbing]
        inside_own[climbing] |= own[up]
        has_worker[up[works[climbing]]] = True
        above[climbing] = parent[up]
        climbing = climbing[above[climbing] >= 0]
    return inside_own, has_worker
