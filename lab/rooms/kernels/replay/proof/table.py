"""replay.csv: one row per launch of a signature."""

from __future__ import annotations

import csv
import io
from typing import Any

from lab.rooms.kernels.replay.proof.result import Row


def csv_text(rows: list[Row]) -> str:
    """The rows by share of time; with a header even if there are none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in sorted(rows, key=lambda row: -row.time_share):
        cells = _cells(row)
        writer.writerow(cells[name] for name in COLUMNS)
    return text.getvalue()


_NAMES = (
    "sig_id position op overload kernel class kind mode count trace_sum_us trace_median_us time_share n_ran "
    "replay_median_us replay_ci_low_us replay_ci_high_us err_pct same_kernel arg_src origin launched flags "
    "name"
)
COLUMNS = _NAMES.split()


def _cells(row: Row) -> dict[str, Any]:
    us = row.us or {"median": "", "ci": None}
    low, high = us["ci"] or ("", "")
    return {
        **{name: getattr(row, name) for name in COLUMNS if hasattr(row, name)},
        "class": row.class_,
        "time_share": round(row.time_share, 6),
        "replay_median_us": us["median"],
        "replay_ci_low_us": low,
        "replay_ci_high_us": high,
        "err_pct": "" if row.err_pct is None else row.err_pct,
        "flags": "; ".join(row.flags),
    }
