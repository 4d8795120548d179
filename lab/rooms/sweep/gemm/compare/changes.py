"""What changed per configuration and GEMM, and whether it can be chance.

A claim of significance needs repeats of the run. Ranks of one run share its luck, so the interval over ranks
only says how alike the ranks are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lab.rooms.sweep.gemm.compare.sweeps import Sweep
from lab.rooms.sweep.names import shape_name
from lab.rooms.sweep.tables import GEMM_SHAPE, KEY, SETTING, SweepTables, column_names, copies, timed
from lab.stats.effects import holm, median_ratio_ci, permutation_p
from lab.stats.means import Sample, difference_ci

SIGNIFICANT = 0.05
FEWEST_RANKS = 3  # for an interval over ranks
CONFIG_FIGURES = [
    *column_names("base other"),
    *SETTING,
    *column_names(
        "repeats_base repeats_other total_base_ms total_other_ms change_percent ci_low_percent "
        "ci_high_percent repeats_low_percent repeats_high_percent p_value"
    ),
]
GEMM_FIGURES = column_names(
    "gemm n_base n_other median_base_us median_other_us change_percent changed_us ci_low_percent "
    "ci_high_percent"
)


def config_changes(base: Sweep, heads: Sequence[Sweep]) -> pd.DataFrame:
    """One row per configuration of the base or another sweep: medians, change, interval over ranks, and over
    repeats an interval and p, which is corrected over all sweeps and configurations (Holm)."""
    frame: pd.DataFrame = pd.concat([_changes(base, head) for head in heads], ignore_index=True)
    p = frame["p_value"].mask(frame["other"].isin([head.label for head in heads if steps_differ(base, head)]))
    frame["p_value"] = p  # of other numbers of steps no test says anything
    frame["p_holm"] = holm(p.to_numpy(dtype=float))
    tested = int(p.notna().sum())
    pairs = zip(frame["repeats_base"], frame["repeats_other"], strict=True)
    least_p_holm = np.array([min(1.0, tested * least_p(*pair)) for pair in pairs])
    frame["least_p_holm"] = np.where(p.notna(), least_p_holm, np.nan)  # untested: nothing to reach
    frame["judgement"] = [_judge(row) for row in frame.itertuples()]
    return frame


def steps_differ(base: Sweep, head: Sweep) -> bool:
    """Whether the two profiled different numbers of steps, so that no total time compares."""
    return len({*base.tables.timeline["steps"], *head.tables.timeline["steps"]}) > 1


def shared_repeats(base: Sweep, head: Sweep) -> int:
    """Repeats of `other` whose total time is that of a repeat of `base`, to the last digit: copies of it."""
    sides = [_totals(side.tables) for side in (base, head)]
    none = np.empty(0)
    return sum(
        int(np.isin(head_repeats.repeats, sides[0][key].repeats if key in sides[0] else none).sum())
        for key, head_repeats in sides[1].items()
    )


def copied_repeats(sweep: Sweep) -> int:
    """Repeats of a sweep whose total time is that of an earlier one of their setting, to the last digit."""
    return len(copies(sweep.tables.configs))


def _changes(base: Sweep, head: Sweep) -> pd.DataFrame:
    rows = []
    sides = [_totals(side.tables) for side in (base, head)]
    for setting in sorted(set(sides[0]) | set(sides[1])):
        base_values, head_values = (side.get(setting, _NO_TOTALS) for side in sides)
        rows.append(
            {
                "base": base.label,
                "other": head.label,
                **dict(zip(SETTING, setting, strict=True)),
                "repeats_base": len(base_values.repeats),
                "repeats_other": len(head_values.repeats),
                "total_base_ms": _median(base_values.repeats),
                "total_other_ms": _median(head_values.repeats),
                "change_percent": _change(_median(base_values.repeats), _median(head_values.repeats)),
                **_interval(base_values.ranks, head_values.ranks),
                **_between_repeats(base_values.repeats, head_values.repeats),
                "p_value": _p(base_values.repeats, head_values.repeats),
            }
        )
    frame: pd.DataFrame = pd.DataFrame(rows, columns=CONFIG_FIGURES)
    return frame


def gemm_changes(base: Sweep, head: Sweep) -> pd.DataFrame:
    """One row per configuration and GEMM shape of both sweeps, most time changed first."""
    key = [*SETTING, *GEMM_SHAPE]
    groups = [dict(list(_fresh_gemms(side.tables).groupby(key, dropna=False))) for side in (base, head)]
    rows = []
    for shape in sorted(set(groups[0]) & set(groups[1]), key=str):
        base_values, head_values = (group[shape] for group in groups)
        old_us, new_us = float(base_values["median_us"].median()), float(head_values["median_us"].median())
        per_rank = head_values["n"].sum() / len(head_values)
        rows.append(
            {
                "base": base.label,
                "other": head.label,
                **dict(zip(key, shape, strict=True)),
                "gemm": shape_name(shape[len(SETTING) :]),
                "n_base": int(base_values["n"].sum()),
                "n_other": int(head_values["n"].sum()),
                "median_base_us": old_us,
                "median_other_us": new_us,
                "change_percent": _change(old_us, new_us),
                "changed_us": (new_us - old_us) * per_rank,
                **_interval(base_values["median_us"].to_numpy(), head_values["median_us"].to_numpy()),
            }
        )
    frame = pd.DataFrame(rows, columns=["base", "other", *key, *GEMM_FIGURES])
    order = frame["changed_us"].abs().sort_values(ascending=False, kind="stable").index
    ordered: pd.DataFrame = frame.loc[order].reset_index(drop=True)
    return ordered


def gemms_in_one(base: Sweep, head: Sweep) -> int:
    """How many GEMMs, by configuration and shape, one of the two has alone, of configurations in both."""
    key = [*SETTING, *GEMM_SHAPE]
    sides = [
        set(sweep.tables.gemm[key].astype(str).itertuples(index=False, name=None)) for sweep in (base, head)
    ]
    shared_keys = set.intersection(*({gemm_key[: len(SETTING)] for gemm_key in side} for side in sides))
    return sum(gemm_key[: len(SETTING)] in shared_keys for gemm_key in sides[0] ^ sides[1])


def least_p(repeats_base: int, repeats_other: int) -> float:
    """The least two-sided p of a permutation test of so many repeats: 1 over their arrangements, 2 where
    equal numbers give each its mirror image."""
    if min(repeats_base, repeats_other) < 1:
        return 1.0
    mirrored = 2 if repeats_base == repeats_other else 1
    return min(1.0, mirrored / math.comb(repeats_base + repeats_other, repeats_base))


def repeats_needed(comparisons: int) -> int:
    """How many repeats of each let the clearest of so many differences reach significance after Holm."""
    return next(n for n in range(2, 50) if comparisons * least_p(n, n) <= SIGNIFICANT)


def _judge(row: Any) -> str:
    fewest = min(row.repeats_base, row.repeats_other)
    if fewest == 0:
        return "not in both"
    if math.isnan(row.p_value) and fewest > 1:
        return "other numbers of steps"
    if fewest == 1:
        return "one run each" if max(row.repeats_base, row.repeats_other) == 1 else "one run on one side"
    if row.least_p_holm > SIGNIFICANT:
        return "too few repeats"  # not even the clearest difference could reach significance
    if row.p_holm >= SIGNIFICANT:
        return "no difference shown"
    return "slower" if row.change_percent > 0 else "faster"


@dataclass(frozen=True)
class _Totals:
    """Total times of one configuration in ms: of each complete repeat, and of each rank in these."""

    repeats: np.ndarray
    ranks: np.ndarray


_NO_TOTALS = _Totals(np.empty(0), np.empty(0))


def _totals(tables: SweepTables) -> dict[tuple[int, int], _Totals]:
    complete = timed(tables.configs).drop_duplicates([*SETTING, "total_time_ms"])  # a copy is no repeat
    by_rank = tables.timeline.merge(complete[[*SETTING, "repeat"]], on=[*SETTING, "repeat"])
    ranks = {key: rows["total_time_ms"].to_numpy() for key, rows in by_rank.groupby(SETTING)}
    return {
        key: _Totals(rows["total_time_ms"].to_numpy(), ranks.get(key, np.empty(0)))
        for key, rows in complete.groupby(SETTING)
    }


def _fresh_gemms(tables: SweepTables) -> pd.DataFrame:
    """The rows of `gemm` without those of copied repeats."""
    copied = set(copies(tables.configs)[KEY].itertuples(index=False, name=None))
    keys = tables.gemm[KEY].itertuples(index=False, name=None)
    rows: pd.DataFrame = tables.gemm[[key not in copied for key in keys]] if copied else tables.gemm
    return rows


def _interval(base_values: np.ndarray, head_values: np.ndarray) -> dict[str, float]:
    enough = min(len(base_values), len(head_values)) >= FEWEST_RANKS
    low, high = median_ratio_ci(base_values, head_values) if enough else (math.nan, math.nan)
    return {"ci_low_percent": 100 * (low - 1), "ci_high_percent": 100 * (high - 1)}


def _between_repeats(base_values: np.ndarray, head_values: np.ndarray) -> dict[str, float]:
    """The change's 95 % interval over repeats, which are what a change is judged by; Welch on their logs."""
    low, high = math.nan, math.nan
    if min(len(base_values), len(head_values)) > 1:
        samples = (Sample.of(np.log(side).tolist()) for side in (head_values, base_values))
        low, high = (100 * math.expm1(edge) for edge in difference_ci(*samples))
    return {"repeats_low_percent": low, "repeats_high_percent": high}


def _p(base_values: np.ndarray, head_values: np.ndarray) -> float:
    if min(len(base_values), len(head_values)) < 2:
        return math.nan
    treated = np.repeat([False, True], [len(base_values), len(head_values)])
    return permutation_p(
        np.concatenate([base_values, head_values]), treated, np.zeros(len(treated), dtype=int)
    )


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else math.nan


def _change(base_value: float, head_value: float) -> float:
    return 100 * (head_value / base_value - 1) if base_value else math.nan
