"""The GEMMs whose time varies most, when their extreme instances ran, and what ran beside these.

The first columns are those of the known CSV (ROCm/aorta). max - min grows with the number of instances and
with the size of the GEMM, so robust figures follow: median, MAD, CV, percentiles, and the median of each
step. The extreme instances are kept as events (rank, step, correlation, time), never looked up again by
name.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lab.core.files import write_atomic
from lab.core.words import plural
from lab.report.figures import distributions, lines, save_png
from lab.report.tables import write_csv
from lab.rooms.sweep.gemm import Report
from lab.rooms.sweep.gemm.beside import overlap_findings, slowdown, usable, with_overlap
from lab.rooms.sweep.gemm.data import SweepData
from lab.rooms.sweep.gemm.sheets.workbook import EXTRAS
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.tables import GROUP, KEY, NO_LAUNCH, SETTING, column_names, run_name
from lab.stats.robust import grouped

TOP_FILE = "top{k}_gemm_kernels_time_variance.csv"
INSTANCES_FILE = "gemm_instances.parquet"
STAMPS = column_names(
    "min_duration_timestamp_ms max_duration_timestamp_ms time_between_min_max_ms "
    "min_duration_found_us max_duration_found_us"
)
FIRST = column_names("threads channel rank kernel_name kernel_time_min_us kernel_time_max_us time_diff_us")
OURS = column_names(
    "op M N K strides dtype n median_us mad_us cv p5_us p95_us step free_median_us "
    "overlapped_median_us slowdown ci_low ci_high p_value"
)
# What the GEMM sheet has computed of these.
SPREAD = EXTRAS[:6]
MORE = column_names(
    "B bias dims transpose repeat robust_spread excess_time_us num_kernel_names family cold_n "
    "unfinished_n step_medians_us free_n overlapped_n min_step min_correlation min_ts_ns min_end_ns "
    "max_correlation max_ts_ns max_end_ns file algorithm protocol"
)
AXIS = "max − min of a GEMM's time, µs"
KNOBS = {"threads": "threads", "channel": "channels", "rank": "ranks"}
_LINE = ["threads", "algorithm", "protocol"]
UNKNOWN = "unknown"
Draw = Callable[[pd.DataFrame, pd.DataFrame], Figure]


def write_variance(data: SweepData, out: Path, *, top_k: int = 5) -> Report:
    """Write top{k}_gemm_kernels_time_variance.csv: the top_k GEMMs of each trace by max - min, largest first.

    `..._with_timestamps.csv` has the same rows with the times of their extreme instances, in ms of the
    trace's own clock, as Perfetto shows them (*_ts_ns columns are absolute);
    `..._with_collective_overlap.csv` also what overlapped them on the same rank; gemm_groups.csv every GEMM
    of every trace, gemm_instances.parquet every instance, plots/ the five plots of the list. Raises
    MissingError without any GEMM that an op launched.
    """
    table = groups(data)
    top = top_rows(table, top_k)
    stamped = with_timestamps(data, top)
    overlapped = with_overlap(data, stamped)
    path = out / TOP_FILE.format(k=top_k)
    files = [
        write_csv(top, path),
        write_csv(stamped, path.with_name(f"{path.stem}_with_timestamps.csv")),
        write_csv(overlapped, path.with_name(f"{path.stem}_with_collective_overlap.csv")),
        write_csv(table.drop(columns=sheet_columns(table)), out / "gemm_groups.csv"),
        _write_instances(data, out / INSTANCES_FILE),
        *write_plots(top, data.traces, out),
    ]
    findings = [*findings_of(top), *overlap_findings(overlapped)]
    return Report(files, list(data.missing), [*data.problems, *_unlinked(data)], findings)


def write_plots(top: pd.DataFrame, traces: pd.DataFrame, out: Path) -> list[Path]:
    """The five plots of the list; none where no GEMM ran more than once."""
    if top.empty:
        return []
    settings = settings_of(top, traces)
    return [save_png(draw(top, settings), out / "plots" / f"{name}.png") for name, draw in VARIANCE.items()]


def top_rows(table: pd.DataFrame, top_k: int) -> pd.DataFrame:
    """The top_k rows of each trace by time_diff_us, largest first; GEMMs that ran only once are left out."""
    repeated = table[table["n"] > 1].sort_values("time_diff_us", ascending=False, kind="stable")
    top: pd.DataFrame = repeated.groupby([*KEY, "rank"], sort=False, observed=True).head(top_k)
    result: pd.DataFrame = top.reset_index(drop=True)
    return result


def with_timestamps(data: SweepData, top: pd.DataFrame) -> pd.DataFrame:
    """The rows with STAMPS appended."""
    rank_keys = top[[*KEY, "rank"]].itertuples(index=False, name=None)
    base_ns = np.array([data.ranks[Key(*key)][rank].base_ns for *key, rank in rank_keys], dtype=np.int64)
    low_ms = (top["min_ts_ns"].to_numpy(dtype=np.int64) - base_ns) / 1e6
    high_ms = (top["max_ts_ns"].to_numpy(dtype=np.int64) - base_ns) / 1e6
    values = (low_ms, high_ms, np.abs(high_ms - low_ms), top["kernel_time_min_us"], top["kernel_time_max_us"])
    stamps: dict[str, Any] = dict(zip(STAMPS, values, strict=True))
    stamped: pd.DataFrame = top.assign(**stamps)
    return stamped


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
    return [
        f"{lost:,} of {plural(len(data.gemm), 'GEMM kernel')} were launched before the window: they have no "
        "shapes and are not grouped"
    ]


def findings_of(top: pd.DataFrame) -> list[str]:
    """Which GEMM varies most."""
    if top.empty:
        return []
    row = top.iloc[0]
    rank = f"rank {row['rank']} of " if row["rank"] >= 0 else ""
    return [
        f"{row['op']} {row['M']}x{row['N']}x{row['K']} varies most: {row['kernel_time_min_us']:.1f} to "
        f"{row['kernel_time_max_us']:.1f} µs within {rank}{run_name(Key(*row[KEY]))} "
        f"(median {row['median_us']:.1f} µs, {plural(int(row['n']), 'instance')})"
    ]


def groups(data: SweepData) -> pd.DataFrame:
    """One row per trace and GEMM (op, sizes, strides, dtype): FIRST, col_<GEMM sheet> sorted, OURS, MORE.

    GEMM kernels whose launch was not recorded have no shape and no row. Raises MissingError if none is left.
    """
    chosen = usable(data)
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
    stats = grouped(dur_us, group, n)
    # By time within each group: its first row is the shortest instance, its last the longest.
    order = np.lexsort((dur_us, group))
    ends = np.cumsum(stats["count"])
    low, high = (instances.iloc[order[rows]] for rows in (ends - stats["count"], ends - 1))
    keys = low[[*KEY, "rank", *GROUP, "transpose", "file"]].reset_index(drop=True)
    result: pd.DataFrame = keys.assign(
        kernel_time_min_us=stats["min"],
        kernel_time_max_us=stats["max"],
        time_diff_us=stats["max"] - stats["min"],
        n=stats["count"],
        median_us=stats["median"],
        robust_spread=stats["mad"] / np.where(stats["median"] > 0, stats["median"], np.nan),
        excess_time_us=np.bincount(group, np.maximum(dur_us - stats["median"][group], 0), n),
        cold_n=np.bincount(group, instances["cold"], n).astype(int),
        unfinished_n=np.bincount(group, instances["unfinished"], n).astype(int),
        step=high["step"].to_numpy(),
        step_medians_us=_step_medians(pd.Series(dur_us), group, instances["step"].to_numpy()),
        # The most frequent one; of equally frequent ones the first by name.
        kernel_name=[names.mode().iloc[0] for _, names in instances["kernels"].astype(str).groupby(group)],
        **{f"min_{name}": low[name].to_numpy() for name in ("step", "correlation", "ts_ns", "end_ns")},
        **{f"max_{name}": high[name].to_numpy() for name in ("correlation", "ts_ns", "end_ns")},
        **_slowdowns(instances, order, ends),
    )
    return result


def _slowdowns(instances: pd.DataFrame, order: np.ndarray, ends: np.ndarray) -> dict[str, list[float]]:
    columns = instances[[*KEY, "rank", "step", "dur_ns", "comm_ns"]].iloc[order]
    slowdowns = [slowdown(columns.iloc[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return {name: [slowdown[name] for slowdown in slowdowns] for name in slowdowns[0]}


def _step_medians(dur_us: pd.Series, group: np.ndarray, step: np.ndarray) -> list[str]:
    """Texts (groups,) like `5: 168.448; 6: 169.137`, the median of each step."""
    medians_us = dur_us.groupby([group, step]).median()
    return [
        "; ".join(map("{}: {:.3f}".format, of_group.index.get_level_values(1), of_group))
        for _, of_group in medians_us.groupby(level=0)
    ]


def _sheet_of(data: SweepData) -> pd.DataFrame:
    """The GEMM sheets: SPREAD, TraceLens' columns as col_<header>, and KEY, rank and GROUP to join by."""
    sheet, keys = data.groups, [*KEY, "rank", *SPREAD]
    headings = [str(name) for name in sheet if name not in (*keys, "file", *EXTRAS)]
    names = {name: f"col_{name}" for name in headings if not name.startswith("_")}
    names |= {f"_{name}": name for name in GROUP}
    renamed: pd.DataFrame = sheet[[*keys, *names]].rename(columns=names)
    return renamed


def sheet_columns(frame: pd.DataFrame) -> list[str]:
    return [str(name) for name in frame if str(name).startswith("col_")]


def settings_of(top: pd.DataFrame, traces: pd.DataFrame) -> pd.DataFrame:
    """Setting and rank of every row of `top` and of every trace that was read."""
    parts = [part.reindex(columns=[*SETTING, "rank"]) for part in (top, traces) if len(part)]
    settings: pd.DataFrame = pd.concat(parts).drop_duplicates()
    return settings


def _by(knob: str) -> Draw:
    def draw(top: pd.DataFrame, settings: pd.DataFrame) -> Figure:
        title = f"Time difference of the most varying GEMMs by {KNOBS[knob]}"
        return distributions([title], [_by_value(top, settings, knob)], axis=AXIS)

    return draw


def _violins(top: pd.DataFrame, settings: pd.DataFrame) -> Figure:
    titles = [f"by {words}" for words in KNOBS.values()]
    return distributions(titles, [_by_value(top, settings, knob) for knob in KNOBS], axis=AXIS, violins=True)


def _interaction(top: pd.DataFrame, settings: pd.DataFrame) -> Figure:
    channels = sorted(settings["channel"].dropna().unique())
    means = top.groupby(SETTING)["time_diff_us"].mean().unstack("channel").reindex(columns=channels)
    series = {}
    for threads, algorithm, protocol in sorted(set(settings[_LINE].itertuples(index=False, name=None))):
        label = "threads unknown" if _value("threads", threads) == UNKNOWN else f"{int(threads)} threads"
        row = means.reindex([(threads, algorithm, protocol)]).to_numpy()[0]
        series[" ".join(filter(None, (label, algorithm, protocol)))] = row
    return lines(
        [_value("channel", channel) for channel in channels],
        series,
        across="channels",
        axis=f"mean of {AXIS}",
        title="Threads and channels together",
    )


def _by_value(top: pd.DataFrame, settings: pd.DataFrame, knob: str) -> dict[str, np.ndarray]:
    values_us = dict(list(top.groupby(knob)["time_diff_us"]))
    empty = pd.Series(dtype=float)
    values = sorted(settings[knob].dropna().unique())
    return {_value(knob, value): values_us.get(value, empty).to_numpy() for value in values}


def _value(knob: str, value: float) -> str:
    """A setting as an axis shows it: threads and channels that were not recorded are 0, such a rank is -1."""
    return UNKNOWN if value < (0 if knob == "rank" else 1) else str(int(value))


VARIANCE: dict[str, Draw] = {
    "variance_by_threads_boxplot": _by("threads"),
    "variance_by_channels_boxplot": _by("channel"),
    "variance_by_ranks_boxplot": _by("rank"),
    "variance_violin_combined": _violins,
    "variance_thread_channel_interaction": _interaction,
}
