"""The comparison's charts, and the plots of each sweep's variance side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from lab.errors import MissingError
from lab.report.figures import SERIES, save
from lab.report.parts import Chart, Figure, Prose, Series, Table
from lab.rooms.sweep.gemm.compare.sweeps import Sweep
from lab.rooms.sweep.gemm.plots import VARIANCE, settings_of
from lab.rooms.sweep.gemm.variance.groups import groups
from lab.rooms.sweep.gemm.variance.top import top_rows
from lab.rooms.sweep.names import name_of, short_name
from lab.rooms.sweep.tables import SETTING, column_names

PLOTS, TOP_K = "comparison/plots", 5
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
        {tuple(key) for sweep in sweeps for key in sweep.tables.configs[SETTING].to_numpy().tolist()}
    )
    series = []
    for index, sweep in enumerate(sweeps):
        offset = (index - (len(sweeps) - 1) / 2) * 0.5 / max(1, len(sweeps) - 1)
        points = [_metric_points(sweep, settings, metric, offset) for metric in METRICS]
        series.append(Series(sweep.label, SERIES[index % len(SERIES)], points))
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
    for index, setting in enumerate(settings):
        rows = groups.get(setting)
        if rows is None:
            continue
        values = rows[metric]
        name = f"{sweep.label}, {short_name(*setting)}"
        for value, rank, repeat in zip(values, rows["rank"], rows["repeat"], strict=True):
            tip = f"{name}\nrank {rank}, repeat {repeat}: {value:.2f} ms"
            points.append((round(index + offset + 0.08, 4), round(float(value), 4), tip))
        low, middle, high = float(values.min()), float(values.median()), float(values.max())
        tip = f"{name}\nmedian {middle:.2f} ms over {len(values)} ranks\n{low:.2f} to {high:.2f} ms"
        points.append((round(index + offset, 4), round(middle, 4), tip, round(low, 4), round(high, 4)))
    return points


def gemm_blocks(gemm: pd.DataFrame) -> list[Any]:
    if gemm.empty:
        return [Prose("The sweeps have no GEMM shape in common, or no GEMM could be linked to its operator.")]
    shown = gemm[GEMM_COLUMNS].copy()
    shown.insert(1, "configuration", [name_of(row) for row in gemm.itertuples()])
    return [Table(shown, "GEMMs, most time changed per rank first", "comparison/gemm.csv")]


def variance_blocks(sweeps: Sequence[Sweep], out: Path) -> list[Any]:
    """The five plots of the original pipeline, of all sweeps side by side; each is a file in PLOTS, too."""
    drawn: dict[str, list[tuple[str, str, str]]] = {name: [] for name in VARIANCE}
    for number, sweep in enumerate(sweeps):
        folder = f"{PLOTS}/{number}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', sweep.label)[:60]}"
        try:
            top = top_rows(groups(sweep.data), TOP_K) if sweep.data else pd.DataFrame()
        except MissingError:
            continue
        if sweep.data is None or top.empty:
            continue
        settings = settings_of(top, sweep.data.traces)
        for name, draw in VARIANCE.items():
            svg = save(draw(top, settings), out / folder, name)
            svg = re.sub(rf'(#|id="){name}-', rf"\g<1>{name}-{number}-", svg)  # unique on the page
            drawn[name].append((sweep.label, svg, f"{folder}/{name}.png"))
    blocks: list[Any] = []
    for name, plots in drawn.items():
        if plots:
            columns = "".join(f"<div><p>{escape(label)}</p>{svg}</div>" for label, svg, _ in plots)
            pair = f'<div style="display:grid;grid-auto-flow:column;gap:1rem;overflow-x:auto">{columns}</div>'
            caption = f"{name.replace('_', ' ').capitalize()}: {', '.join(label for label, *_ in plots)}."
            blocks.append(Figure(pair, caption, plots[0][2], "comparison/gemm.csv"))
    return blocks or [Prose("No sweep has a GEMM that ran more than once, so nothing varies.")]
