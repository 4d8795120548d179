"""What one GEMM's variance is due to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lab.rooms.sweep.gemm.columns import FREE, FULL, PARTIAL
from lab.stats.effects import explained_shares
from lab.stats.robust import median

OTHER_SHARE = 0.1
FACTORS = ("overlap", "cold_start", "other_kernels", "rank")
WORDS = {
    "overlap": "a collective beside it",
    "cold_start": "the cold first step",
    "other_kernels": "other kernels beside it",
    "rank": "which rank (its GPU, host or clock)",
    "unexplained": "nothing that the trace shows",
}


def shares(rows: pd.DataFrame) -> dict[str, Any]:
    """What one GEMM's variance in one configuration is due to; the shares add up to 1.

    In this order, each taking what the ones before left: the overlap class, the cold first step, other
    kernels that ran beside it for 10 % of its time or more, the rank. What two causes share goes to the
    first.
    """
    dur_us = rows["dur_ns"].to_numpy() / 1000
    length_ns = np.maximum((rows["end_ns"] - rows["ts_ns"]).to_numpy(), 1)
    factors = {
        "overlap": rows["overlap"].map({FREE: 0, PARTIAL: 1, FULL: 2}).to_numpy(dtype=int),
        "cold_start": rows["cold"].to_numpy(dtype=int),
        "other_kernels": (rows["other_ns"].to_numpy() / length_ns >= OTHER_SHARE).astype(int),
        "rank": rows["rank"].to_numpy(dtype=int),
    }
    found = explained_shares(dur_us, factors)
    return {
        "n": len(rows),
        "median_us": median(dur_us),
        "std_us": float(dur_us.std(ddof=1)) if len(dur_us) > 1 else np.nan,
        "time_spread_us2": float(((dur_us - dur_us.mean()) ** 2).sum()),
        **{f"{name}_share": found[name] for name in (*FACTORS, "unexplained")},
        "clocks_share": np.nan,
        "verdict": _verdict(found),
    }


def _verdict(found: dict[str, float]) -> str:
    """The causes of 10 % and more, largest first."""
    if any(np.isnan(share) for share in found.values()):
        return "too few instances, or no spread"
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{100 * share:.0f} % {WORDS[name]}" for name, share in ranked if share >= 0.1)
