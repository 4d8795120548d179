"""Tables of collectives as `views.collective_instances` gives them, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.recordings.tables import Table

TEXTS = ("collective", "dtype", "pg_name", "pg_desc", "pg_ranks", "kernel")
WORLD = "[0, 1, 2, 3]"
US = 1000


def call(truth: int, ts_us: float, dur_us: float, **more: Any) -> dict[str, Any]:
    """A row of `views.collective_instances`; `correlation` is the truth that pairing must find again."""
    row = {
        "collective": "allreduce",
        "in_nelems": 1024,
        "out_nelems": 1024,
        "dtype": "Float",
        "group_size": 4,
        "msg_bytes": 4096,
        "pg_name": "0",
        "pg_desc": "default_pg",
        "pg_ranks": WORLD,
        "seq": -1,
        "ts_ns": round(ts_us * US),
        "dur_ns": round(dur_us * US),
        "stream": 28,
        "correlation": truth,
        "grid_x": 28,
        "block_x": 288,
        "step": -1,
        "kernel": "ncclDevKernel_AllReduce",
        "row": truth,
    }
    return {**row, **more}


def table(rows: list[dict[str, Any]]) -> Table:
    columns = {}
    for name in call(0, 0, 0):
        kind: Any = object if name in TEXTS else np.int64
        columns[name] = np.array([row[name] for row in rows], dtype=kind)
    return Table(columns)
