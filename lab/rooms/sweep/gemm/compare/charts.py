"""The comparison's two charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from lab.report.figures import SERIES
from lab.report.parts import Chart, Prose, Series, Table
from lab.rooms.sweep.gemm.compare.sweeps import Sweep
from lab.rooms.sweep.names import name_of, short_name
from lab.rooms.sweep.tables import SETTING, column_names

METRICS = {
    "total_time_ms": "total time, ms",
    "computation_time_ms": "computation, ms",
    "exposed_comm_time_ms": "exposed communication, ms",
    "idle_time_ms": "idle, ms",
    "total_comm_time_ms": "total communication, ms",
}
GEMM_COLUMNS = column_names(
    "other gemm n_base n_other median_base_us median_other_us change_percent ci_low_percent "
    "ci_high_percent changed_us"
)


def config_chart(sweeps: Sequence[Sweep]) -> Chart:
    """Per configuration and sweep the median with the range over ranks, and each rank beside it."""
    settings = sorted(
        {tuple(key) for one in sweeps for key in one.tables.configs[SETTING].to_numpy().tolist()}
    )
    series = []
    for at, one in enumerate(sweeps):
        offset = (at - (len(sweeps) - 1) / 2) * 0.5 / max(1, len(sweeps) - 1)
        points = [_metric_points(one, settings, metric, offset) for metric in METRICS]
        series.append(Series(one.label, SERIES[at % len(SERIES)], points))
    names = [short_name(*setting) for setting in settings]
    caption = (
        "Large dots are medians over ranks, with the range from the fastest to the slowest; small dots are "
        "ranks. Drag to zoom, double-click to reset; the buttons above choose what is shown."
    )
    return Chart(
        "configurations",
        "configuration",
        list(METRICS.values()),
        series,
        caption,
        "comparison/ranks.csv",
        names=names,
    )


def _metric_points(
    sweep: Sweep, settings: Sequence[tuple[Any, ...]], metric: str, offset: float
) -> list[tuple[Any, ...]]:
    points: list[tuple[Any, ...]] = []
    groups = dict(list(sweep.tables.timeline.groupby(SETTING)))
    for at, setting in enumerate(settings):
        rows = groups.get(setting)
        if rows is None:
            continue
        values = rows[metric]
        name = f"{sweep.label}, {short_name(*setting)}"
        for value, rank, repeat in zip(values, rows["rank"], rows["repeat"], strict=True):
            tip = f"{name}\nrank {rank}, repeat {repeat}: {value:.2f} ms"
            points.append((round(at + offset + 0.08, 4), round(float(value), 4), tip))
        low, middle, high = float(values.min()), float(values.median()), float(values.max())
        tip = f"{name}\nmedian {middle:.2f} ms over {len(values)} ranks\n{low:.2f} to {high:.2f} ms"
        points.append((round(at + offset, 4), round(middle, 4), tip, round(low, 4), round(high, 4)))
    return points


def gemm_blocks(gemm: pd.DataFrame, sweeps: Sequence[Sweep]) -> list[Any]:
    if gemm.empty:
        return [Prose("The sweeps have no GEMM shape in common, or no GEMM could be linked to its operator.")]
    series = []
    for at, (other, rows) in enumerate(gemm.groupby("other", sort=False), start=1):
        points = [(row.median_base_us, row.median_other_us, _tip(row)) for row in rows.itertuples()]
        series.append(Series(str(other), SERIES[at % len(SERIES)], [points]))
    caption = (
        "Median time of every GEMM shape and configuration in both sweeps; above the dashed line is slower."
    )
    chart = Chart(
        "gemm",
        f"{sweeps[0].label}: median µs",
        ["median in the other sweep, µs"],
        series,
        caption,
        "comparison/gemm.csv",
        diagonal=True,
    )
    shown = gemm[GEMM_COLUMNS].copy()
    shown.insert(1, "configuration", [name_of(row) for row in gemm.itertuples()])
    return [chart, Table(shown, "GEMMs, most time changed per rank first", "comparison/gemm.csv")]


def _tip(row: Any) -> str:
    change = f"{row.median_base_us:.1f} → {row.median_other_us:.1f} µs ({row.change_percent:+.1f} %)"
    return f"{row.gemm}\n{name_of(row)}\n{change}"
