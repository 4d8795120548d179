"""What slows a GEMM: the same shape with and without a collective beside it.

One configuration at a time, with the instances of all its ranks, steps and repeats. If one rank never
overlaps and the others always do, the effect of the collective cannot be told from that of the rank: the
test then takes whole ranks as its units, and says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.core.words import plural
from lab.report.tables import write_csv
from lab.rooms.sweep.gemm.data import SweepData
from lab.rooms.sweep.gemm.places import Report
from lab.rooms.sweep.gemm.variance.top import slowdown, usable
from lab.rooms.sweep.tables import FREE, FULL, GROUP, PARTIAL, SETTING, column_names, grouped, long_name
from lab.stats.effects import permutation_p
from lab.stats.robust import median

EFFECT = [
    *SETTING,
    *GROUP,
    *column_names(
        "family n free_n overlapped_n partial_n full_n free_median_us partial_median_us full_median_us "
        "overlapped_median_us slowdown ci_low ci_high p_value test same_rank_slowdown same_rank_n "
        "excess_time_us note"
    ),
]
FEW = 5  # instances
BY_BLOCK, BY_RANK, NO_TEST = "within rank and step", "whole ranks", "none possible"


def write_causes(data: SweepData, out: Path) -> Report:
    """Write gemm_overlap_effect.csv and the plot of the slowdowns.

    A GEMM that ran only with or only without a collective beside it has its row, with NaN and a note.
    """
    from lab.report.figures import save_png  # matplotlib takes 0.3 s to load
    from lab.rooms.sweep.gemm.plots import slowdown_plot

    effects = effect_table(data)
    files = [write_csv(effects, out / "gemm_overlap_effect.csv")]
    if figure := slowdown_plot(effects):
        files.append(save_png(figure, out / "plots" / "gemm_overlap_slowdown.png"))
    return Report(files, list(data.missing), list(data.problems), findings(effects))


def effect_table(data: SweepData) -> pd.DataFrame:
    """The table EFFECT, by configuration, most GEMM time first."""
    key = [*SETTING, *GROUP]
    rows, total_ns = [], []
    for values, instances in usable(data).groupby(key, observed=True, sort=True):
        rows.append({**dict(zip(key, values, strict=True)), **effect(instances)})
        total_ns.append(float(instances["dur_ns"].sum()))
    settings = (np.array([row[name] for row in rows]) for name in reversed(SETTING))
    order = np.lexsort((-np.array(total_ns), *settings))
    table: pd.DataFrame = pd.DataFrame([rows[index] for index in order], columns=EFFECT)
    return table


def findings(effects: pd.DataFrame) -> list[str]:
    """Per configuration: how much longer GEMMs take beside a collective."""
    sentences = []
    for setting, rows in grouped(effects, SETTING):
        compared = rows.dropna(subset=["slowdown"])
        words = "no GEMM ran both with and without a collective beside it"
        sentences.append(f"{long_name(*setting)}: {words if compared.empty else _slowdown_words(compared)}")
    return sentences


def _slowdown_words(compared: pd.DataFrame) -> str:
    slowdown = compared["slowdown"]
    added_ms = compared["excess_time_us"].sum() / 1000
    clear = int((compared["ci_low"] > 1).sum())
    blurred = int((compared["test"] == BY_RANK).sum())
    doubt = f"; for {blurred} of them the rank and the overlap cannot be told apart" if blurred else ""
    return (
        f"beside a collective a GEMM takes {slowdown.median():.2f} times as long (median of "
        f"{plural(len(compared), 'shape')}, {slowdown.min():.2f} to {slowdown.max():.2f}, {clear} clearly "
        f"longer{doubt}), which adds {added_ms:.1f} ms over all ranks and steps"
    )


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


def _p_value(rows: pd.DataFrame, dur_us: np.ndarray, blocked: float) -> tuple[float, str]:
    """Within ranks and steps if both kinds ran there, otherwise over whole ranks."""
    if not np.isnan(blocked):
        return blocked, BY_BLOCK
    by_rank = (
        pd.DataFrame(
            {
                "unit": rows.groupby(["repeat", "rank"], sort=False).ngroup().to_numpy(),
                # A GEMM of 0 ns has no logarithm.
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
