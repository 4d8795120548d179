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
from lab.rooms.sweep.gemm.columns import GROUP
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.gemm.report import Report
from lab.rooms.sweep.gemm.variance.beside import beside
from lab.rooms.sweep.gemm.variance.effect import BY_RANK, effect, split_effects
from lab.rooms.sweep.gemm.variance.groups import usable
from lab.rooms.sweep.names import long_name
from lab.rooms.sweep.tables import SETTING, column_names, grouped

EFFECT = [
    *SETTING,
    *GROUP,
    *column_names(
        "family n free_n overlapped_n partial_n full_n free_median_us partial_median_us full_median_us "
        "overlapped_median_us slowdown ci_low ci_high p_value test same_rank_slowdown same_rank_n "
        "excess_time_us note"
    ),
]
SPLITS = [
    *SETTING,
    *GROUP,
    *column_names("split value n median_us free_median_us free_n slowdown ci_low ci_high"),
]


def write_causes(data: SweepData, out: Path) -> Report:
    """Write gemm_overlap_effect.csv and gemm_overlap_splits.csv.

    A GEMM that ran only with or only without a collective beside it has its row, with NaN and a note.
    """
    effects, splits = effect_tables(data)
    tables = {"gemm_overlap_effect": effects, "gemm_overlap_splits": splits}
    files = [write_csv(table, out / f"{name}.csv") for name, table in tables.items()]
    return Report(files, list(data.missing), list(data.problems), findings(effects))


def effect_tables(data: SweepData) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables EFFECT and SPLITS, each by configuration, most GEMM time first."""
    chosen = usable(data).join(beside(data)[["collective", "msg_bytes", "channels", "phase"]])
    effects: list[dict[str, Any]] = []
    splits: list[dict[str, Any]] = []
    weight = []
    for values, rows in chosen.groupby([*SETTING, *GROUP], observed=True, sort=True):
        key = dict(zip([*SETTING, *GROUP], values, strict=True))
        effects.append({**key, **effect(rows)})
        splits += [{**key, **row} for row in split_effects(rows)]
        weight.append(float(rows["dur_ns"].sum()))
    settings = (np.array([row[name] for row in effects]) for name in reversed(SETTING))
    order = np.lexsort((-np.array(weight), *settings))
    return (
        pd.DataFrame([effects[i] for i in order], columns=EFFECT),
        pd.DataFrame(splits, columns=SPLITS),
    )


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
