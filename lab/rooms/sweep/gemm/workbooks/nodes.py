"""Which host a rank ran on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lab.rooms.sweep.gemm.reading.rank import RankTables


@dataclass(frozen=True)
class Nodes:
    """The host of each rank, derived from the number of GPUs that its trace lists."""

    ranks: Mapping[int, RankTables]

    def of(self, rank: int) -> int:
        size = max((rank.num_devices for rank in self.ranks.values()), default=0)
        return rank // size if size else 0

    def spans(self, pg_ranks: np.ndarray) -> np.ndarray:
        """Number of hosts (n,) that each group of ranks, a text like `[0, 1]`, lies on."""
        spans_of: dict[str, int] = {}
        for text in set(pg_ranks.tolist()):
            members = [int(part) for part in text.strip("[] ").split(",") if part.strip().isdigit()]
            spans_of[text] = len({self.of(rank) for rank in members}) or 1
        return np.array([spans_of[text] for text in pg_ranks.tolist()], dtype=np.int64)
