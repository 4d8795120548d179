"""What a collective's kernel only waits: the time before its last rank has come is no cost of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.recordings.ranks import work_of
from lab.recordings.ranks.common import UNKNOWN, together
from lab.rooms.kernels.catalogue.rank import RankData
from lab.rooms.kernels.schema import Launch


def mark_waits(ranks: Sequence[RankData], launches: Sequence[Launch]) -> dict[tuple[int, int], float]:
    """Set `wait_us` of collectives; returns ms by (waiting rank, awaited rank). Nothing for one rank."""
    works = {rank.rank: work_of(rank.trace, rank.rank) for rank in ranks if rank.on_gpu}
    if len(works) < 2:
        return {}
    all_ranks = together(works)
    by_row: dict[tuple[int, int], float] = {}
    sums: dict[tuple[int, int], float] = {}
    for work, call in zip(all_ranks.works, all_ranks.calls, strict=True):
        wait_us = (call.all_in - work.start[call.row]) / 1000
        for index in np.flatnonzero((wait_us > 0) & (call.last_index != UNKNOWN)).tolist():
            by_row[work.rank, int(call.row[index])] = float(wait_us[index])
            pair = work.rank, all_ranks.ranks[int(call.last_index[index])]
            sums[pair] = sums.get(pair, 0.0) + float(wait_us[index]) / 1000
    for launch in launches:
        launch.wait_us = by_row.get((launch.rank, launch.row), 0.0)
    return sums
