"""Which collectives ran beside a GEMM, and whether they were waiting for a rank or moving data.

Both occupy the GPU's multiprocessors alike: a collective that only waits for a straggler slows a GEMM too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lab.core.words import plural
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.gemm.reading.pairs import of_rank, pairs_of
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.tables import KEY, column_names
from lab.stats.intervals import meetings, spans, total
from lab.stats.intervals import overlap as covered

WAITING, TRANSFER = "waiting", "transfer"
COLUMNS = column_names(
    "overlapping_collective_count overlapping_collective_names max_overlap_percentage "
    "max_overlap_collective total_overlap_duration_ms"
)
# Of the longest instance: what share of its window a waiting and a transferring collective covers, and the
# collective_id of collectives.csv. Of the shortest: the share any collective covers, as the control.
MORE = [
    "waiting_percentage",
    "transfer_percentage",
    "max_overlap_collective_id",
    "min_instance_overlap_percentage",
]


def beside(data: SweepData) -> pd.DataFrame:
    """Find for every row of data.gemm, in its order, the collective that overlaps it longest.

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
            pd.concat(parts).reindex(data.gemm.index) if parts else _nothing_beside(data.gemm.index)
        )
    joined: pd.DataFrame = data.memo["beside"]
    return joined


def _beside_rank(data: SweepData, key: Any, gemm: pd.DataFrame) -> pd.DataFrame:
    *setting, rank = key
    collectives = rank_collectives(data, Key(*setting), rank)
    columns = _nothing_beside(gemm.index)
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
        # Matched collectives are on the common clock, GEMMs on the rank's own.
        start = matched.ts_ns + clock_ns
        self.span = spans(start, matched.dur_ns)
        # A call that one rank alone recorded has no known wait: all of it counts as transfer.
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


def _nothing_beside(index: pd.Index) -> pd.DataFrame:
    numbers = dict.fromkeys(("msg_bytes", "channels", "collective_id"), -1)
    values = {"collective": "", **numbers, "waiting_ns": 0, "transfer_ns": 0, "phase": ""}
    empty: pd.DataFrame = pd.DataFrame(values, index=index)
    return empty


def with_overlap(data: SweepData, top: pd.DataFrame) -> pd.DataFrame:
    """The rows with COLUMNS and MORE appended."""
    rows = [_of_row(data, row) for row in top.to_dict("records")]
    result: pd.DataFrame = pd.concat([top, pd.DataFrame(rows, columns=[*COLUMNS, *MORE])], axis=1)
    return result


def _of_row(data: SweepData, row: dict[Any, Any]) -> dict[str, Any]:
    setting = Key(*(row[name] for name in KEY))
    collectives = rank_collectives(data, setting, int(row["rank"]))
    window, control = (
        np.array([[row[f"{extreme}_ts_ns"], row[f"{extreme}_end_ns"]]], dtype=np.int64)
        for extreme in ("max", "min")
    )
    _, met = meetings(window, collectives.span)
    clipped = np.clip(collectives.span[met], *window[0])
    shares = 100 * (clipped[:, 1] - clipped[:, 0]) / max(int(window[0, 1] - window[0, 0]), 1)
    longest = met[shares.argmax()] if len(met) else -1
    names, ids = collectives.table.collective, collectives.table.collective_id
    waiting_ns = int(covered(window, collectives.waiting)[0])
    all_ns = total(clipped)
    return {
        "overlapping_collective_count": len(met),
        "overlapping_collective_names": ";".join(names[met].tolist()),
        "max_overlap_percentage": float(shares.max()) if len(met) else 0.0,
        "max_overlap_collective": names[longest] if len(met) else "",
        "total_overlap_duration_ms": all_ns / 1e6,
        "waiting_percentage": _percent(waiting_ns, window),
        "transfer_percentage": _percent(all_ns - waiting_ns, window),
        "max_overlap_collective_id": int(ids[longest]) if len(met) else -1,
        "min_instance_overlap_percentage": _percent(int(covered(control, collectives.span)[0]), control),
    }


def _percent(part_ns: int, window: np.ndarray) -> float:
    return 100 * part_ns / max(int(window[0, 1] - window[0, 0]), 1)


def overlap_findings(table: pd.DataFrame) -> list[str]:
    if table.empty:
        return []
    slow = int((table["total_overlap_duration_ms"] > 0).sum())
    fast = int((table["min_instance_overlap_percentage"] > 0).sum())
    return [
        f"of the {plural(len(table), 'most varying GEMM')}, a collective overlapped the longest instance of "
        f"{slow} and the shortest instance of {fast}"
    ]
