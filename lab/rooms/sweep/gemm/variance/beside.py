"""Which collective ran beside each GEMM, and whether it was waiting for a rank or moving data.

Both occupy the GPU's multiprocessors alike: a collective that only waits for a straggler slows a GEMM too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.gemm.reading.pairs import of_rank, pairs_of
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.tables import KEY
from lab.stats.intervals import meetings, spans
from lab.stats.intervals import overlap as covered

WAITING, TRANSFER = "waiting", "transfer"


def beside(data: SweepData) -> pd.DataFrame:
    """For every row of data.gemm, in its order, the collective that overlaps it longest.

    Columns: collective ("" for none), msg_bytes, channels (blocks of its grid), collective_id, waiting_ns and
    transfer_ns (covered by collectives before and after their last rank arrived), phase (`waiting`,
    `transfer` or "", the longer of both).
    """
    if "beside" not in data.memo:
        parts = [
            _beside_rank(data, key, data.gemm.loc[index])
            for key, index in data.gemm.groupby([*KEY, "rank"], sort=False, observed=True).groups.items()
        ]
        data.memo["beside"] = (
            pd.concat(parts).reindex(data.gemm.index) if parts else _nothing(data.gemm.index)
        )
    joined: pd.DataFrame = data.memo["beside"]
    return joined


def _beside_rank(data: SweepData, key: Any, gemm: pd.DataFrame) -> pd.DataFrame:
    *setting, rank = key
    collectives = rank_collectives(data, Key(*setting), rank)
    columns = _nothing(gemm.index)
    if not len(collectives):
        return columns
    window = gemm[["ts_ns", "end_ns"]].to_numpy(dtype=np.int64)
    query, span = meetings(window, collectives.span)
    shared = np.minimum(window[query, 1], collectives.span[span, 1]) - np.maximum(
        window[query, 0], collectives.span[span, 0]
    )
    order = np.lexsort((-shared, query))
    queried, first_rows = np.unique(query[order], return_index=True)
    longest = span[order][first_rows]
    for name in ("collective", "msg_bytes", "channels", "collective_id"):
        column = columns[name].to_numpy().copy()
        column[queried] = getattr(collectives.table, name)[longest]
        columns[name] = column
    columns["waiting_ns"] = covered(window, collectives.waiting)
    columns["transfer_ns"] = np.maximum(covered(window, collectives.span) - columns["waiting_ns"], 0)
    phase = np.where(columns["waiting_ns"] > columns["transfer_ns"], WAITING, TRANSFER)
    result: pd.DataFrame = columns.assign(
        phase=np.where(columns["waiting_ns"] + columns["transfer_ns"] > 0, phase, "")
    )
    return result


class RankCollectives:
    """A rank's collectives by time: their spans (n, 2), the waiting part of each, and what they are."""

    def __init__(self, matched: Table, clock_ns: int) -> None:
        start = matched.ts_ns + clock_ns
        self.span = spans(start, matched.dur_ns)
        wait_ns = np.nan_to_num(matched.wait_us * 1000).astype(np.int64)
        self.waiting = spans(start, np.minimum(wait_ns, matched.dur_ns))
        names = np.where(matched.collective != "", matched.collective, matched.kernel)
        self.table = Table(
            {
                "collective": names,
                "msg_bytes": matched.msg_bytes,
                "channels": matched.grid_x,
                "collective_id": matched.collective_id,
            }
        )

    def __len__(self) -> int:
        return len(self.span)


def rank_collectives(data: SweepData, setting: Key, rank: int) -> RankCollectives:
    """On the rank's own clock, which is that of its GEMMs."""
    pairs = pairs_of(data)[setting]
    return RankCollectives(of_rank(pairs, rank), pairs.offsets_ns.get(rank, 0))


def _nothing(index: pd.Index) -> pd.DataFrame:
    n = len(index)
    text = pd.Series([""] * n, index=index, dtype=object)
    number = pd.Series(np.full(n, -1, dtype=np.int64), index=index)
    result: pd.DataFrame = pd.DataFrame(
        {
            "collective": text,
            "msg_bytes": number,
            "channels": number,
            "collective_id": number,
            "waiting_ns": 0,
            "transfer_ns": 0,
            "phase": text,
        },
        index=index,
    )
    return result
