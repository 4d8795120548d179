"""What a concurrent collective does to the time of one GEMM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lab.core.words import plural
from lab.rooms.sweep.gemm.columns import FREE, FULL, PARTIAL
from lab.rooms.sweep.gemm.variance.slowdown import slowdown
from lab.stats.effects import median_ratio_ci, permutation_p
from lab.stats.robust import median

FEW = 5  # instances
BY_BLOCK, BY_RANK, NO_TEST = "within rank and step", "whole ranks", "none possible"


def effect(rows: pd.DataFrame) -> dict[str, Any]:
    """What a concurrent collective does to one GEMM of one configuration; `rows` are its instances."""
    dur_us = rows["dur_ns"].to_numpy() / 1000
    kind = rows["overlap"].astype(str).to_numpy()
    figures = slowdown(rows)
    figures["p_value"], test = _p_value(rows, dur_us, figures["p_value"])
    same_rank = _same_rank(rows, dur_us)
    beside_us = dur_us[kind != FREE]
    return {
        "family": rows["family"].iloc[0],
        "n": len(rows),
        "partial_n": int((kind == PARTIAL).sum()),
        "full_n": int((kind == FULL).sum()),
        "partial_median_us": median(dur_us[kind == PARTIAL]),
        "full_median_us": median(dur_us[kind == FULL]),
        **figures,
        "test": test,
        "same_rank_slowdown": median(same_rank),
        "same_rank_n": len(same_rank),
        "excess_time_us": float((beside_us - figures["free_median_us"]).sum())
        if figures["free_n"]
        else np.nan,
        "note": _note(rows, figures, test),
    }


def split_effects(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The effect by collective, message size, channels, and whether the collective waited or moved data."""
    dur_us = rows["dur_ns"].to_numpy() / 1000
    is_free = (rows["overlap"] == FREE).to_numpy()
    free_us = dur_us[is_free]
    result = []
    for split in ("collective", "msg_bytes", "channels", "phase"):
        values = rows[split].to_numpy()
        for value in sorted(set(values[~is_free].tolist())):
            these_us = dur_us[~is_free & (values == value)]
            low, high = median_ratio_ci(free_us, these_us)
            result.append(
                {
                    "split": split,
                    "value": value,
                    "n": len(these_us),
                    "median_us": median(these_us),
                    "free_median_us": median(free_us),
                    "free_n": len(free_us),
                    "slowdown": median(these_us) / (median(free_us) or np.nan),
                    "ci_low": low,
                    "ci_high": high,
                }
            )
    return result


def _p_value(rows: pd.DataFrame, dur_us: np.ndarray, blocked: float) -> tuple[float, str]:
    """Within ranks and steps if both kinds ran there, otherwise over whole ranks."""
    if not np.isnan(blocked):
        return blocked, BY_BLOCK
    by_rank = (
        pd.DataFrame(
            {
                "unit": rows.groupby(["repeat", "rank"], sort=False).ngroup().to_numpy(),
                "dur": np.log(np.maximum(dur_us, 1e-3)),
                "beside": (rows["overlap"] != FREE).to_numpy(),
            }
        )
        .groupby("unit")
        .agg({"dur": "median", "beside": "mean"})
    )
    units = len(by_rank)
    p_value = permutation_p(
        by_rank["dur"].to_numpy(), by_rank["beside"].to_numpy() > 0.5, np.zeros(units, dtype=int)
    )
    return p_value, NO_TEST if np.isnan(p_value) else BY_RANK


def _same_rank(rows: pd.DataFrame, dur_us: np.ndarray) -> list[float]:
    """Slowdown within each rank (of each repeat) that ran both kinds."""
    is_free = (rows["overlap"] == FREE).to_numpy()
    unit = rows.groupby(["repeat", "rank"], sort=False).ngroup().to_numpy()
    return [
        median(dur_us[(unit == number) & ~is_free]) / (median(dur_us[(unit == number) & is_free]) or np.nan)
        for number in range(int(unit.max()) + 1)
        if 0 < is_free[unit == number].sum() < (unit == number).sum()
    ]


def _note(rows: pd.DataFrame, figures: dict[str, Any], test: str) -> str:
    if not figures["free_n"]:
        return "never ran without a collective beside it: no control"
    if not figures["overlapped_n"]:
        return "no collective ever ran beside it"
    counts = {kind: figures[f"{kind}_n"] for kind in ("free", "overlapped")}
    notes = [f"only {plural(count, f'{kind} instance')}" for kind, count in counts.items() if count < FEW]
    if test == BY_RANK:
        free = sorted(set(rows.loc[rows["overlap"] == FREE, "rank"].tolist()))
        ranks = f"rank{'' if len(free) == 1 else 's'} {', '.join(map(str, free))}"
        notes.append(f"free only on {ranks}, so the rank and the overlap cannot be told apart")
    return "; ".join(notes)
