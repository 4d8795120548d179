"""The cause of a slow GEMM: the same shape with and without a collective beside it, and what the spread is due to.

One configuration at a time; instances of all its ranks, steps and repeats together. A rank that never overlaps
beside ranks that always do cannot tell the collective from the rank: the test then takes whole ranks as its units,
and says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.report.tables import write_csv
from lab.rooms.sweep.gemm.overlap import beside
from lab.rooms.sweep.gemm.tables import FREE, FULL, GROUP, PARTIAL, Progress, Report, SweepData, read_sweep
from lab.rooms.sweep.gemm.variance import slowdown, usable
from lab.stats.effects import explained_shares, median_ratio_ci, permutation_p
from lab.stats.robust import median

CONFIG = ["threads", "channel"]
FEW = 5
OTHER_SHARE = 0.1
BY_BLOCK, BY_RANK, NO_TEST = "within rank and step", "whole ranks", "none possible"
EFFECT = [
    *CONFIG,
    *GROUP,
    "family",
    "n",
    "free_n",
    "overlapped_n",
    "partial_n",
    "full_n",
    "free_median_us",
    "partial_median_us",
    "full_median_us",
    "overlapped_median_us",
    "slowdown",
    "ci_low",
    "ci_high",
    "p_value",
    "test",
    "same_rank_slowdown",
    "same_rank_n",
    "excess_time_us",
    "note",
]
SPLITS = [
    *CONFIG,
    *GROUP,
    "split",
    "value",
    "n",
    "median_us",
    "free_median_us",
    "free_n",
    "slowdown",
    "ci_low",
    "ci_high",
]
FACTORS = ("overlap", "cold_start", "other_kernels", "rank")
CAUSES = [
    *CONFIG,
    *GROUP,
    "n",
    "median_us",
    "std_us",
    "time_spread_us2",
    *(f"{name}_share" for name in FACTORS),
    "clocks_share",
    "unexplained_share",
    "verdict",
]
WORDS = {
    "overlap": "a collective beside it",
    "cold_start": "the cold first step",
    "other_kernels": "other kernels beside it",
    "rank": "which rank (its GPU, host or clock)",
    "unexplained": "nothing that the trace shows",
}
CLOCKS = "clocks are not in a trace, so their part is in the rank's or unexplained"


def cause(
    sweep: Path,
    out: Path,
    *,
    keep_odd_steps: bool = True,
    workers: int = 2,
    progress: Progress | None = None,
    data: SweepData | None = None,
) -> Report:
    """Write gemm_overlap_effect.csv, gemm_overlap_splits.csv and gemm_variance_causes.csv.

    Raises MissingError without traces. A GEMM without both kinds of instances has its row, with NaN and a note.
    """
    data = data or read_sweep(sweep, cache=out / ".cache" / "traces", workers=workers, progress=progress)
    effects, splits, causes = effect_tables(data, keep_odd_steps=keep_odd_steps)
    tables = {
        "gemm_overlap_effect": effects,
        "gemm_overlap_splits": splits,
        "gemm_variance_causes": causes,
    }
    files = [write_csv(table, out / f"{name}.csv") for name, table in tables.items()]
    return Report(files, list(data.lacking), list(data.problems), findings(effects, causes))


def effect_tables(
    data: SweepData, *, keep_odd_steps: bool = True
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The tables EFFECT, SPLITS and CAUSES, each by configuration, most GEMM time first."""
    chosen = usable(data, keep_odd_steps=keep_odd_steps)
    chosen = chosen.join(beside(data)[["collective", "msg_bytes", "channels", "phase"]])
    effects: list[dict[str, Any]] = []
    splits: list[dict[str, Any]] = []
    causes: list[dict[str, Any]] = []
    weight = []
    for values, rows in chosen.groupby([*CONFIG, *GROUP], observed=True, sort=True):
        key = dict(zip([*CONFIG, *GROUP], values, strict=True))
        effects.append({**key, **effect(rows)})
        splits += [{**key, **row} for row in split_effects(rows)]
        causes.append({**key, **shares(rows)})
        weight.append(float(rows["dur_ns"].sum()))
    order = np.lexsort(
        (-np.array(weight), [row["channel"] for row in effects], [row["threads"] for row in effects])
    )
    return (
        pd.DataFrame([effects[i] for i in order], columns=EFFECT),
        pd.DataFrame(splits, columns=SPLITS),
        pd.DataFrame([causes[i] for i in order], columns=CAUSES),
    )


def effect(rows: pd.DataFrame) -> dict[str, Any]:
    """What a concurrent collective does to one GEMM of one configuration; `rows` are its instances."""
    dur_us = rows["dur_ns"].to_numpy() / 1000
    kind = rows["overlap"].astype(str).to_numpy()
    found = slowdown(rows)
    found["p_value"], test = _p_value(rows, dur_us, found["p_value"])
    same_rank = _same_rank(rows, dur_us)
    beside_us = dur_us[kind != FREE]
    return {
        "family": rows["family"].iloc[0],
        "n": len(rows),
        "partial_n": int((kind == PARTIAL).sum()),
        "full_n": int((kind == FULL).sum()),
        "partial_median_us": median(dur_us[kind == PARTIAL]),
        "full_median_us": median(dur_us[kind == FULL]),
        **found,
        "test": test,
        "same_rank_slowdown": median(same_rank),
        "same_rank_n": len(same_rank),
        "excess_time_us": float((beside_us - found["free_median_us"]).sum()) if found["free_n"] else np.nan,
        "note": _note(rows, found, test),
    }


def split_effects(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The effect by the collective beside, its size, its channels, and whether it waited or moved data."""
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
                    "slowdown": median(these_us) / median(free_us),
                    "ci_low": low,
                    "ci_high": high,
                }
            )
    return result


def shares(rows: pd.DataFrame) -> dict[str, Any]:
    """What one GEMM's variance in one configuration is due to; the shares add up to 1.

    In this order, each taking what the ones before left: the overlap class, the cold first step, other
    kernels that ran beside it for 10 % of its time or more, the rank. What two share goes to the first.
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


def findings(effects: pd.DataFrame, causes: pd.DataFrame) -> list[str]:
    """For each configuration: how much longer GEMMs take beside a collective, and what that explains."""
    sentences = []
    for (threads, channel), rows in effects.groupby(CONFIG):
        told = rows.dropna(subset=["slowdown"])
        name = f"{threads} threads {channel} channels"
        if told.empty:
            sentences.append(f"{name}: no GEMM ran both with and without a collective beside it")
            continue
        clear = int((told["ci_low"] > 1).sum())
        lost_ms = told["excess_time_us"].sum() / 1000
        spread = causes[(causes["threads"] == threads) & (causes["channel"] == channel)]
        whole = spread["time_spread_us2"].sum()
        part = (
            (spread["overlap_share"].fillna(0) * spread["time_spread_us2"]).sum() / whole if whole else np.nan
        )
        blurred = int((told["test"] == BY_RANK).sum())
        doubt = f"; for {blurred} of them the rank and the overlap cannot be told apart" if blurred else ""
        sentences.append(
            f"{name}: beside a collective a GEMM takes {told['slowdown'].median():.2f} times as long (median of "
            f"{len(told)} shapes, {told['slowdown'].min():.2f} to {told['slowdown'].max():.2f}, {clear} clearly "
            f"longer{doubt}), {lost_ms:.1f} ms in all ranks and steps; this overlap explains {100 * part:.0f} % "
            f"of the variance within shapes"
        )
    return [*sentences, *([CLOCKS] if sentences else [])]


def _p_value(rows: pd.DataFrame, dur_us: np.ndarray, blocked: float) -> tuple[float, str]:
    """Within ranks and steps if both kinds meet there; else over whole ranks, the units that differ."""
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
        median(dur_us[(unit == one) & ~is_free]) / median(dur_us[(unit == one) & is_free])
        for one in range(int(unit.max()) + 1)
        if 0 < is_free[unit == one].sum() < (unit == one).sum()
    ]


def _note(rows: pd.DataFrame, found: dict[str, Any], test: str) -> str:
    if not found["free_n"]:
        return "never ran without a collective beside it: no control"
    if not found["overlapped_n"]:
        return "no collective ever ran beside it"
    notes = [
        f"only {found[f'{kind}_n']} {kind} instances"
        for kind in ("free", "overlapped")
        if found[f"{kind}_n"] < FEW
    ]
    if test == BY_RANK:
        free = sorted(set(rows.loc[rows["overlap"] == FREE, "rank"].tolist()))
        ranks = ", ".join(map(str, free))
        notes.append(f"free on rank {ranks} only, so the rank and the overlap cannot be told apart")
    return "; ".join(notes)


def _verdict(found: dict[str, float]) -> str:
    """The causes of 10 % and more, largest first."""
    if any(np.isnan(share) for share in found.values()):
        return "too few instances, or no spread"
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{100 * share:.0f} % {WORDS[name]}" for name, share in ranked if share >= 0.1)
