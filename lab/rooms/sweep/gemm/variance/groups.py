"""The GEMMs of each trace as groups of equal instances, with robust figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lab.errors import MissingError
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.gemm.sheets.gemms import EXTRAS
from lab.rooms.sweep.tables import GROUP, KEY, NO_LAUNCH, column_names
from lab.stats.effects import median_ratio_ci, permutation_p
from lab.stats.robust import grouped, median

FIRST = column_names("threads channel rank kernel_name kernel_time_min_us kernel_time_max_us time_diff_us")
OURS = column_names(
    "op M N K strides dtype n median_us mad_us cv p5_us p95_us step free_median_us "
    "overlapped_median_us slowdown ci_low ci_high p_value"
)
MORE = column_names(
    "B bias dims transpose repeat robust_spread excess_time_us num_kernel_names family cold_n "
    "unfinished_n step_medians_us free_n overlapped_n min_step min_correlation min_ts_ns min_end_ns "
    "max_correlation max_ts_ns max_end_ns file algorithm protocol"
)


def groups(data: SweepData) -> pd.DataFrame:
    """One row per trace and GEMM (op, sizes, strides, dtype): FIRST, col_<GEMM sheet> sorted, OURS, MORE.

    GEMM kernels whose launch was not recorded have no shape and no row. Raises MissingError if none is left.
    """
    if "groups" not in data.memo:
        data.memo["groups"] = _groups(data)
    table: pd.DataFrame = data.memo["groups"]
    return table


def usable(data: SweepData) -> pd.DataFrame:
    """The GEMM instances that have an op."""
    rows: pd.DataFrame = data.gemm[data.gemm["op"] != NO_LAUNCH]
    return rows


def _groups(data: SweepData) -> pd.DataFrame:
    chosen = usable(data)
    if chosen.empty:
        raise MissingError(
            "no GEMM in these traces was launched by a recorded op",
            location=data.folder,
            fix="record the traces with record_shapes=True, and the CPU side too",
        )
    key = [*KEY, "rank", *GROUP]
    group = chosen.groupby(key, observed=True, sort=True).ngroup().to_numpy()
    frame = _describe(chosen, group)
    joined = frame.merge(_sheet_of(data), how="left", on=key, validate="one_to_one")
    ordered: pd.DataFrame = joined[[*FIRST, *sorted(sheet_columns(joined)), *OURS, *MORE]]
    return ordered


def _describe(instances: pd.DataFrame, group: np.ndarray) -> pd.DataFrame:
    """One row per group 0..n-1 with all figures but those of the sheet; `group`: that of each instance."""
    dur_us = instances["dur_ns"].to_numpy() / 1000
    n = int(group.max()) + 1
    stats = grouped(dur_us, group, n, (5, 95))
    order = np.lexsort((dur_us, group))
    ends = np.cumsum(stats["count"])
    low, high = (instances.iloc[order[at]] for at in (ends - stats["count"], ends - 1))
    keys = low[[*KEY, "rank", *GROUP, "transpose", "family", "file"]].reset_index(drop=True)
    result: pd.DataFrame = keys.assign(
        kernel_time_min_us=stats["min"],
        kernel_time_max_us=stats["max"],
        time_diff_us=stats["max"] - stats["min"],
        n=stats["count"],
        median_us=stats["median"],
        mad_us=stats["mad"],
        cv=stats["cv"],
        p5_us=stats["p5"],
        p95_us=stats["p95"],
        robust_spread=stats["mad"] / np.where(stats["median"] > 0, stats["median"], np.nan),
        excess_time_us=np.bincount(group, np.maximum(dur_us - stats["median"][group], 0), n),
        cold_n=np.bincount(group, instances["cold"], n).astype(int),
        unfinished_n=np.bincount(group, instances["unfinished"], n).astype(int),
        step=high["step"].to_numpy(),
        step_medians_us=_step_medians(instances["step"].to_numpy(), dur_us, group, n),
        **_kernel_names(instances["kernels"], group, n),
        **{f"min_{name}": low[name].to_numpy() for name in ("step", "correlation", "ts_ns", "end_ns")},
        **{f"max_{name}": high[name].to_numpy() for name in ("correlation", "ts_ns", "end_ns")},
        **_slowdowns(instances, order, ends),
    )
    return result


def _slowdowns(instances: pd.DataFrame, order: np.ndarray, ends: np.ndarray) -> dict[str, list[float]]:
    columns = instances[[*KEY, "rank", "step", "dur_ns", "comm_ns"]].iloc[order]
    slowdowns = [slowdown(columns.iloc[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return {name: [slowdown[name] for slowdown in slowdowns] for name in slowdowns[0]}


def _step_medians(step: np.ndarray, dur_us: np.ndarray, group: np.ndarray, n: int) -> list[str]:
    """Texts (n,) like `5: 168.448; 6: 169.137`, the median of each step."""
    pairs, pair = np.unique(np.stack([group, step], axis=1), axis=0, return_inverse=True)
    medians_us = grouped(dur_us, pair.ravel(), len(pairs))["median"]
    texts: list[list[str]] = [[] for _ in range(n)]
    for (group_index, number), us in zip(pairs.tolist(), medians_us.tolist(), strict=True):
        texts[group_index].append(f"{number}: {us:.3f}")
    return ["; ".join(text) for text in texts]


def _kernel_names(kernels: pd.Series, group: np.ndarray, n: int) -> dict[str, Any]:
    """The most frequent kernel of each group, and how many different ones it has."""
    codes, names = pd.factorize(kernels)
    pairs, count = np.unique(np.stack([group, codes], axis=1), axis=0, return_counts=True)
    order = np.lexsort((-count, pairs[:, 0]))
    leading = order[np.unique(pairs[order, 0], return_index=True)[1]]
    return {
        "kernel_name": np.asarray(names, dtype=object)[pairs[leading, 1]],
        "num_kernel_names": np.bincount(pairs[:, 0], minlength=n),
    }


def _sheet_of(data: SweepData) -> pd.DataFrame:
    """The GEMM sheets, read by header: columns col_<header>, and KEY, rank and GROUP to join them by."""
    sheet, keys = data.groups, [*KEY, "rank"]
    headings = [str(name) for name in sheet if name not in (*keys, "file", *EXTRAS)]
    names = {name: f"col_{name}" for name in headings if not name.startswith("_")}
    names |= {f"_{name}": name for name in GROUP}
    renamed: pd.DataFrame = sheet[[*keys, *names]].rename(columns=names)
    return renamed


def sheet_columns(frame: pd.DataFrame) -> list[str]:
    return [str(name) for name in frame if str(name).startswith("col_")]


def slowdown(instances: pd.DataFrame) -> dict[str, float]:
    """Compare one GEMM without and with a collective beside it: medians, ratio, 95 % interval and p-value.

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
