"""Which collectives ran beside a GEMM, and whether they were waiting for a rank or moving data.

Both occupy the GPU's multiprocessors alike: a collective that only waits for a straggler slows a GEMM too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lab.core.words import plural
from lab.rooms.sweep.gemm.data import SweepData
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.tables import KEY, column_names
from lab.stats.intervals import meetings, spans, total
from lab.stats.intervals import overlap as covered

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


class RankCollectives(NamedTuple):
    """A rank's collectives by time on its own clock, which is that of its GEMMs.

    span (n, 2) is when each ran, waiting (n, 2) the part of it before its last rank arrived.
    """

    span: np.ndarray
    waiting: np.ndarray
    names: np.ndarray
    ids: np.ndarray


def rank_collectives(data: SweepData, setting: Key, rank: int) -> RankCollectives:
    pairs = data.pairs[setting]
    matched = pairs.instances.where(pairs.instances.rank == rank)
    matched = matched.take(np.argsort(matched.ts_ns, kind="stable"))
    # Matched collectives are on the common clock.
    start = matched.ts_ns + pairs.offsets_ns.get(rank, 0)
    # A call that one rank alone recorded has no known wait: all of it counts as transfer.
    wait_ns = np.nan_to_num(matched.wait_us * 1000).astype(np.int64)
    return RankCollectives(
        spans(start, matched.dur_ns),
        spans(start, np.minimum(wait_ns, matched.dur_ns)),
        np.where(matched.collective != "", matched.collective, matched.kernel),
        matched.collective_id,
    )


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
    names, ids = collectives.names, collectives.ids
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
