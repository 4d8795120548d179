"""GEMM instances as tables, made here so that each test says what is in them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.rooms.sweep.tables import FREE, FULL


def instances(dur_us, beside, *, rank=0, step=None) -> pd.DataFrame:
    n = len(dur_us)
    dur_ns = (np.asarray(dur_us) * 1000).astype(np.int64)
    beside = np.asarray(beside, dtype=bool)
    return pd.DataFrame(
        {
            "threads": 256,
            "channel": 28,
            "algorithm": "",
            "protocol": "",
            "repeat": 1,
            "rank": rank,
            "step": np.arange(n) % 2 if step is None else step,
            "dur_ns": dur_ns,
            "ts_ns": 0,
            "end_ns": dur_ns,
            "comm_ns": dur_ns * beside,
            "comm_share": beside.astype(float),
            "overlap": np.where(beside, FULL, FREE),
            "family": "nvjet",
            "cold": False,
            "other_ns": 0,
        }
    )
