"""Which collectives ran beside the extreme instances of the most varying GEMMs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.core.words import plural
from lab.report.tables import write_csv
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.gemm.report import Report
from lab.rooms.sweep.gemm.variance.beside import rank_collectives
from lab.rooms.sweep.gemm.variance.groups import groups
from lab.rooms.sweep.gemm.variance.top import TOP_FILE, top_rows, with_timestamps
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.tables import KEY, column_names
from lab.stats.intervals import meetings, total
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


def write_overlap(data: SweepData, out: Path, *, top_k: int = 5) -> Report:
    """Write `..._with_collective_overlap.csv`: the rows of timestamps, and what overlapped them.

    Only collectives of the same rank count.
    """
    top = with_timestamps(data, top_rows(groups(data), top_k))
    name = TOP_FILE.format(k=top_k).replace(".csv", "_with_collective_overlap.csv")
    table = with_overlap(data, top)
    return Report([write_csv(table, out / name)], list(data.missing), list(data.problems), _findings(table))


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


def _findings(table: pd.DataFrame) -> list[str]:
    if table.empty:
        return []
    slow = int((table["total_overlap_duration_ms"] > 0).sum())
    fast = int((table["min_instance_overlap_percentage"] > 0).sum())
    return [
        f"of the {plural(len(table), 'most varying GEMM')}, a collective overlapped the longest instance of "
        f"{slow} and the shortest instance of {fast}"
    ]
