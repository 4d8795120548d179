"""The GEMMs whose time varies most, when their extreme instances ran, and what ran beside these.

The first columns are those of the known CSV (ROCm/aorta). max - min grows with the number of instances and
with the size of the GEMM, so robust figures follow: median, MAD, CV, percentiles, and the median of each
step. The extreme instances are kept as events (rank, step, correlation, time), never looked up again by
name.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd

from lab.core.files import write_atomic
from lab.core.words import plural
from lab.report.tables import write_csv
from lab.rooms.sweep.gemm.places import Report
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.gemm.variance.groups import groups, sheet_columns
from lab.rooms.sweep.gemm.variance.overlap import overlap_findings, with_overlap
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.names import long_name
from lab.rooms.sweep.tables import KEY, NO_LAUNCH, SETTING, column_names

TOP_FILE = "top{k}_gemm_kernels_time_variance.csv"
INSTANCES_FILE = "gemm_instances.parquet"
STAMPS = column_names(
    "min_duration_timestamp_ms max_duration_timestamp_ms time_between_min_max_ms "
    "min_duration_found_us max_duration_found_us"
)


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
    from lab.report.figures import save_png  # matplotlib takes 0.3 s to load
    from lab.rooms.sweep.gemm.plots import VARIANCE, settings_of

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
    stamps = pd.DataFrame(dict(zip(STAMPS, values, strict=True)), index=top.index)
    stamped: pd.DataFrame = pd.concat([top, stamps], axis=1)
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
        f"{row['kernel_time_max_us']:.1f} µs within {rank}{long_name(*row[SETTING])} "
        f"(median {row['median_us']:.1f} µs, {plural(int(row['n']), 'instance')})"
    ]
