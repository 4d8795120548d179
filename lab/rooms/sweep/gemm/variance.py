"""The GEMMs whose time varies most, and when their extreme instances ran.

The first columns are those of the known CSV (ROCm/aorta); the time difference max - min grows with the number of
instances and with the size of the GEMM, so robust figures follow: median, MAD, CV, percentiles, and each step's.
The extreme instances are remembered as events (rank, step, correlation, time), never found again by name.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.core.files import write_atomic
from lab.errors import MissingError
from lab.report.tables import write_csv
from lab.rooms.sweep.gemm.sheets import EXTRAS
from lab.rooms.sweep.gemm.tables import GROUP, NO_LAUNCH, SETTING, Progress, Report, SweepData, read_sweep
from lab.stats.effects import median_ratio_ci, permutation_p
from lab.stats.robust import grouped, median

TOP_FILE = "top{k}_gemm_kernels_time_variance.csv"
INSTANCES_FILE = "gemm_instances.parquet"
FIRST = [
    "threads",
    "channel",
    "rank",
    "kernel_name",
    "kernel_time_min_us",
    "kernel_time_max_us",
    "time_diff_us",
]
OURS = [
    "op",
    "M",
    "N",
    "K",
    "strides",
    "dtype",
    "n",
    "median_us",
    "mad_us",
    "cv",
    "p5_us",
    "p95_us",
    "step",
    "free_median_us",
    "overlapped_median_us",
    "slowdown",
    "ci_low",
    "ci_high",
    "p_value",
]
MORE = [
    "B",
    "bias",
    "dims",
    "transpose",
    "repeat",
    "robust_spread",
    "excess_time_us",
    "num_kernel_names",
    "family",
    "cold_n",
    "unfinished_n",
    "step_medians_us",
    "free_n",
    "overlapped_n",
    "min_step",
    "min_correlation",
    "min_ts_ns",
    "min_end_ns",
    "max_correlation",
    "max_ts_ns",
    "max_end_ns",
    "file",
]
STAMPS = [
    "min_duration_timestamp_ms",
    "max_duration_timestamp_ms",
    "time_between_min_max_ms",
    "min_duration_found_us",
    "max_duration_found_us",
]


def variance(
    sweep: Path,
    out: Path,
    *,
    top_k: int = 5,
    keep_odd_steps: bool = True,
    workers: int = 2,
    progress: Progress | None = None,
    data: SweepData | None = None,
) -> Report:
    """Write top{k}_gemm_kernels_time_variance.csv: the top_k GEMMs of each trace by max - min, largest first.

    keep_odd_steps=False leaves out the first recorded step and an unfinished last one. gemm_groups.csv has
    every GEMM of every trace, gemm_instances.parquet every instance. Raises MissingError without traces or
    without any GEMM that an op launched.
    """
    data = data or read_sweep(sweep, cache=out / ".cache" / "traces", workers=workers, progress=progress)
    table = groups(data, keep_odd_steps=keep_odd_steps)
    top = top_rows(table, top_k)
    files = [
        write_csv(top, out / TOP_FILE.format(k=top_k)),
        write_csv(table.drop(columns=_sheet_columns(table)), out / "gemm_groups.csv"),
        _write_instances(data, out / INSTANCES_FILE),
    ]
    return Report(files, list(data.lacking), [*data.problems, *_unlinked(data)], _findings(top))


def timestamps(
    sweep: Path,
    out: Path,
    *,
    top_k: int = 5,
    keep_odd_steps: bool = True,
    workers: int = 2,
    progress: Progress | None = None,
    data: SweepData | None = None,
) -> Report:
    """Write the same rows with when the extreme instances ran: `..._with_timestamps.csv`.

    Times are ms of the trace's own clock, as Perfetto shows them; *_ts_ns columns are absolute.
    """
    data = data or read_sweep(sweep, cache=out / ".cache" / "traces", workers=workers, progress=progress)
    top = with_timestamps(data, top_rows(groups(data, keep_odd_steps=keep_odd_steps), top_k))
    name = TOP_FILE.format(k=top_k).replace(".csv", "_with_timestamps.csv")
    return Report([write_csv(top, out / name)], list(data.lacking), list(data.problems))


def groups(data: SweepData, *, keep_odd_steps: bool = True) -> pd.DataFrame:
    """One row per trace and GEMM (op, sizes, strides, dtype): FIRST, col_<GEMM sheet> sorted, OURS, MORE.

    GEMM kernels whose launch was not recorded have no shape and no row. Raises MissingError without a row.
    """
    memo = f"groups {keep_odd_steps}"
    if memo not in data.memo:
        data.memo[memo] = _groups(data, keep_odd_steps=keep_odd_steps)
    found: pd.DataFrame = data.memo[memo]
    return found


def usable(data: SweepData, *, keep_odd_steps: bool) -> pd.DataFrame:
    """The GEMM instances that have an op; without cold and unfinished steps where asked."""
    frame = data.gemm
    keep = (frame["op"] != NO_LAUNCH).to_numpy()
    if not keep_odd_steps:
        keep = keep & ~(frame["cold"] | frame["unfinished"]).to_numpy(dtype=bool)
    result: pd.DataFrame = frame[keep]
    return result


def top_rows(table: pd.DataFrame, top_k: int) -> pd.DataFrame:
    """The top_k rows of each trace by time_diff_us, all of them sorted by it; what ran once is left out."""
    repeated = table[table["n"] > 1].sort_values("time_diff_us", ascending=False, kind="stable")
    top: pd.DataFrame = repeated.groupby([*SETTING, "rank"], sort=False).head(top_k)
    result: pd.DataFrame = top.reset_index(drop=True)
    return result


def with_timestamps(data: SweepData, top: pd.DataFrame) -> pd.DataFrame:
    """The rows with STAMPS appended."""
    where = top[[*SETTING, "rank"]].to_numpy(dtype=np.int64).tolist()
    base_ns = np.array([data.ranks[(t, c, k)][r].base_ns for t, c, k, r in where], dtype=np.int64)
    low_ms = (top["min_ts_ns"].to_numpy(dtype=np.int64) - base_ns) / 1e6
    high_ms = (top["max_ts_ns"].to_numpy(dtype=np.int64) - base_ns) / 1e6
    values = (low_ms, high_ms, np.abs(high_ms - low_ms), top["kernel_time_min_us"], top["kernel_time_max_us"])
    stamps = pd.DataFrame(dict(zip(STAMPS, values, strict=True)), index=top.index)
    stamped: pd.DataFrame = pd.concat([top, stamps], axis=1)
    return stamped


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
        "slowdown": median(overlapped_us) / median(free_us),
        "ci_low": low,
        "ci_high": high,
        "p_value": p_value,
    }


def blocks_of(instances: pd.DataFrame) -> np.ndarray:
    """A number (n,) for each configuration, rank and step: what chance may not mix."""
    key = [name for name in (*SETTING, "rank", "step") if name in instances]
    numbers: np.ndarray = instances.groupby(key, sort=False).ngroup().to_numpy()
    return numbers


def _groups(data: SweepData, *, keep_odd_steps: bool) -> pd.DataFrame:
    chosen = usable(data, keep_odd_steps=keep_odd_steps)
    if chosen.empty:
        raise MissingError(
            "no GEMM in these traces was launched by a recorded op",
            where=data.folder,
            fix="record the traces with record_shapes=True, and the CPU side too",
        )
    key = [*SETTING, "rank", *GROUP]
    group = chosen.groupby(key, observed=True, sort=True).ngroup().to_numpy()
    frame = _describe(chosen, group)
    joined = frame.merge(_sheet_of(data), how="left", on=key, validate="one_to_one")
    ordered: pd.DataFrame = joined[[*FIRST, *sorted(_sheet_columns(joined)), *OURS, *MORE]]
    return ordered


def _describe(instances: pd.DataFrame, group: np.ndarray) -> pd.DataFrame:
    """One row for each group 0..n-1 (of each instance) with all figures but those of the sheet."""
    dur_us = instances["dur_ns"].to_numpy() / 1000
    n = int(group.max()) + 1
    stats = grouped(dur_us, group, n, (5, 95))
    order = np.lexsort((dur_us, group))
    ends = np.cumsum(stats["count"])
    low, high = (instances.iloc[order[at]] for at in (ends - stats["count"], ends - 1))
    keys = low[[*SETTING, "rank", *GROUP, "transpose", "family", "file"]].reset_index(drop=True)
    result: pd.DataFrame = keys.assign(
        kernel_time_min_us=stats["min"],
        kernel_time_max_us=stats["max"],
        time_diff_us=stats["max"] - stats["min"],
        n=stats["count"],
        median_us=stats["median"],
        mad_us=stats["mad"],
        cv=stats["std"] / stats["mean"],
        p5_us=stats["p5"],
        p95_us=stats["p95"],
        robust_spread=stats["mad"] / stats["median"],
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
    columns = instances[[*SETTING, "rank", "step", "dur_ns", "comm_ns"]].iloc[order]
    found = [slowdown(columns.iloc[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return {name: [one[name] for one in found] for name in found[0]}


def _step_medians(step: np.ndarray, dur_us: np.ndarray, group: np.ndarray, n: int) -> list[str]:
    """Texts (n,) like `5: 168.448; 6: 169.137`, the median of each step."""
    pairs, which = np.unique(np.stack([group, step], axis=1), axis=0, return_inverse=True)
    medians_us = grouped(dur_us, which.ravel(), len(pairs))["median"]
    texts: list[list[str]] = [[] for _ in range(n)]
    for (at, number), us in zip(pairs.tolist(), medians_us.tolist(), strict=True):
        texts[at].append(f"{number}: {us:.3f}")
    return ["; ".join(each) for each in texts]


def _kernel_names(kernels: pd.Series, group: np.ndarray, n: int) -> dict[str, Any]:
    """The most frequent kernel of each group, and how many different ones it has."""
    codes, names = pd.factorize(kernels)
    pairs, count = np.unique(np.stack([group, codes], axis=1), axis=0, return_counts=True)
    order = np.lexsort((-count, pairs[:, 0]))
    first = order[np.unique(pairs[order, 0], return_index=True)[1]]
    return {
        "kernel_name": np.asarray(names, dtype=object)[pairs[first, 1]],
        "num_kernel_names": np.bincount(pairs[:, 0], minlength=n),
    }


def _sheet_of(data: SweepData) -> pd.DataFrame:
    """The GEMM sheets, read by header: columns col_<header>, and SETTING, rank and GROUP to join them by."""
    sheet, keys = data.groups, [*SETTING, "rank"]
    known = [str(name) for name in sheet if name not in (*keys, *EXTRAS)]
    names = {name: f"col_{name}" for name in known if not name.startswith("_")}
    names |= {f"_{name}": name for name in GROUP}
    renamed: pd.DataFrame = sheet[[*keys, *names]].rename(columns=names)
    return renamed


def _sheet_columns(frame: pd.DataFrame) -> list[str]:
    return [str(name) for name in frame if str(name).startswith("col_")]


def _write_instances(data: SweepData, path: Path) -> Path:
    """Every GEMM instance, as Parquet: a sweep has millions of them, and half their text repeats."""
    buffer = io.BytesIO()
    data.gemm.to_parquet(buffer, index=False)
    write_atomic(path, buffer.getvalue())
    return path


def _unlinked(data: SweepData) -> list[str]:
    lost = int((data.gemm["op"] == NO_LAUNCH).sum())
    if not lost:
        return []
    total = len(data.gemm)
    return [
        f"{lost} of {total} GEMM kernels were launched before the window: without shapes, they are not grouped"
    ]


def _findings(top: pd.DataFrame) -> list[str]:
    if top.empty:
        return []
    row = top.iloc[0]
    return [
        f"{row['op']} {row['M']}x{row['N']}x{row['K']} varies most: {row['kernel_time_min_us']:.1f} to "
        f"{row['kernel_time_max_us']:.1f} µs within rank {row['rank']} at {row['threads']} threads "
        f"{row['channel']} channels (median {row['median_us']:.1f}, MAD {row['mad_us']:.1f} µs, n {row['n']})"
    ]
