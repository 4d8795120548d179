"""The same GEMM without and with a collective beside it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.rooms.sweep.tables import KEY
from lab.stats.effects import median_ratio_ci, permutation_p
from lab.stats.robust import median


def slowdown(instances: pd.DataFrame) -> dict[str, float]:
    """The same GEMM without and with a collective beside it: medians, ratio, 95 % interval and p-value.

    instances: one group, with rank, step, dur_ns and comm_ns. The p-value shuffles labels within a rank and
    step only; NaN where no rank and step has both kinds.
    """
    dur_us = instances["dur_ns"].to_numpy() / 1000
    beside = instances["comm_ns"].to_numpy() > 0
    free_us, overlapped_us = dur_us[~beside], dur_us[beside]
    low, high, p_value = np.nan, np.nan, np.nan
    if len(free_us) and len(overlapped_us):
        low, high = median_ratio_ci(free_us, overlapped_us)
        p_value = permutation_p(np.log(np.maximum(dur_us, 1e-3)), beside, blocks_of(instances))
    return {
        "free_n": len(free_us),
        "overlapped_n": len(overlapped_us),
        "free_median_us": median(free_us),
        "overlapped_median_us": median(overlapped_us),
        "slowdown": median(overlapped_us) / (median(free_us) or np.nan),  # NaN beside GEMMs of no time
        "ci_low": low,
        "ci_high": high,
        "p_value": p_value,
    }


def blocks_of(instances: pd.DataFrame) -> np.ndarray:
    """A number (n,) for each configuration, rank and step: what chance may not mix."""
    key = [name for name in (*KEY, "rank", "step") if name in instances]
    numbers: np.ndarray = instances.groupby(key, sort=False, observed=True).ngroup().to_numpy()
    return numbers
