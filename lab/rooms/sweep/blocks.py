"""The blocks of the sweep's page: where the time goes, requested and effective settings, GEMMs by shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.report.figures import Cell, cell_grid, save, stacked_bars, stacked_panels
from lab.report.parts import Block, Figure, Prose, Table
from lab.report.terminal import Heading
from lab.rooms.sweep.knobs import Knobs
from lab.rooms.sweep.tables import (
    GEMM_SHAPE,
    PARTS,
    SETTING,
    SweepTables,
    grouped,
    settings_of,
    shape_name,
    short_name,
    shown,
    size_text,
)
from lab.rooms.sweep.verdict import knobs_of, on_cpu

BARS_CAPTION = (
    "The parts of the total time, mean over ranks; communication and copies only where no computation hides "
    "them. The diamond is the median total time over ranks, the line the range over ranks."
)
PANELS_CAPTION = (
    "Each rank on its own, on one scale. If one rank communicates little and the others much, the others are "
    "waiting for it."
)
PILLS = {
    **dict.fromkeys(("ok", "honoured"), "ok"),
    **dict.fromkeys(("clamped", "incomplete"), "warn"),
    **dict.fromkeys(("ignored", "failed", "missing", "broken"), "fail"),
    "unknown": "unknown",
}
VERDICTS = ("honoured", "unknown", "clamped", "ignored")  # from good to bad
MESSAGE = ["collective", "msg_bytes"]
MOST_MESSAGES = 10
MOST_SHAPES = 14
MOST_LABELLED = 16  # columns that leave room for a number in each cell


def time_blocks(tables: SweepTables, folder: Path) -> list[Block]:
    timeline = tables.timeline
    if timeline.empty:
        return []
    steps = " or ".join(str(count) for count in sorted(set(timeline["steps"])))
    axis = f"ms per rank ({steps} profiled steps)"
    bars = save(_config_bars(tables, axis), folder, "timeline")
    panels = save(_rank_panels(timeline, axis), folder, "timeline_ranks")
    return [
        Figure(bars, BARS_CAPTION, "figures/timeline.png", "tables/timeline.csv"),
        Figure(panels, PANELS_CAPTION, "figures/timeline_ranks.png", "tables/timeline.csv"),
        Table(
            shown(timeline.drop(columns=["file"])), "Time of every rank", "tables/timeline.csv", open_rows=0
        ),
    ]


def _config_bars(tables: SweepTables, axis: str) -> Drawing:
    settings = settings_of(tables.configs)
    groups = tables.timeline.groupby(SETTING)
    means = groups[list(PARTS.values())].mean().reindex(settings)
    totals = groups["total_time_ms"].agg(["min", "median", "max"]).reindex(settings)
    marks = [(float(low), float(middle), float(high)) for low, middle, high in totals.to_numpy()]
    parts = {role: means[column].to_numpy() for role, column in PARTS.items()}
    labels = [_label(tables.configs, setting) for setting in settings]
    return stacked_bars(labels, parts, axis=axis, marks=marks, mark_label="total time over ranks")


def _rank_panels(timeline: pd.DataFrame, axis: str) -> Drawing:
    titles, labels, parts = [], [], []
    for setting, rows in grouped(timeline, SETTING):
        means = rows.groupby("rank")[list(PARTS.values())].mean()
        titles.append(short_name(*setting))
        labels.append([f"r{rank}" for rank in means.index])
        parts.append({role: means[column].to_numpy() for role, column in PARTS.items()})
    return stacked_panels(titles, labels, parts, axis=axis)


def _label(configs: pd.DataFrame, setting: Knobs) -> str:
    """The configuration's name, with what is wrong with it where no repeat is complete."""
    states = configs.loc[(configs[SETTING] == list(setting)).all(axis=1), "status"]
    return short_name(*setting) + ("" if (states == "ok").any() else f" {states.iloc[0]}")


def effective_blocks(tables: SweepTables, folder: Path) -> list[Block]:
    effective = tables.effective
    if on_cpu(tables.timeline):
        return [
            Prose(
                "Gloo on a CPU has no channels, threads, algorithms or protocols to compare with the request."
            )
        ]
    if effective.empty:
        return [Prose("The traces hold no collective with its message size, so the effect is unknown.")]
    blocks: list[Block] = []
    for knob in knobs_of(effective):
        figure = save(_effective_grid(effective, knob), folder, f"effective_{knob}")
        caption = (
            f"{knob.capitalize()} requested → effective in the kernels, per collective and message size."
        )
        blocks.append(Figure(figure, caption, f"figures/effective_{knob}.png", "tables/effective.csv"))
    return blocks


def _effective_grid(effective: pd.DataFrame, knob: str) -> Drawing:
    """Rows are configurations, columns the messages that carry most bytes."""
    sizes = effective["msg_bytes"] * effective["count"]
    bytes_moved = sizes.groupby([effective[key] for key in MESSAGE]).sum()
    messages = sorted(bytes_moved.nlargest(MOST_MESSAGES).index, key=lambda key: (key[1], key[0]))
    settings = settings_of(effective)
    cases = dict(grouped(effective, [*SETTING, *MESSAGE]))

    def cell(down: int, across: int) -> Cell | None:
        rows = cases.get((*settings[down], *messages[across]))
        if rows is None:
            return None
        verdict = str(max(rows[f"{knob}_verdict"], key=VERDICTS.index))
        asked, got = (_shown(rows[f"{side}_{knob}"]) for side in ("requested", "effective"))
        text = f"{asked} → {got}"
        return Cell(text, PILLS.get(verdict, "unknown"), 0.55, f"{text}: {verdict}")

    legend = {
        verdict: PILLS[verdict] for verdict in VERDICTS if (effective[f"{knob}_verdict"] == verdict).any()
    }
    names = [f"{collective.strip('_')}\n{size_text(size)}" for collective, size in messages]
    return cell_grid([short_name(*setting) for setting in settings], names, cell, legend=legend)


def _shown(values: pd.Series) -> str:
    """`27`, or `27–28` if ranks or repeats differ; words one beside the other; a dash if unknown."""
    if not pd.api.types.is_numeric_dtype(values):
        return ", ".join(sorted({word for word in values if word})) or "–"
    counts = sorted({int(value) for value in values if value > 0})
    return "–".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "–"


def gemm_blocks(gemm: pd.DataFrame, folder: Path) -> list[Block]:
    if gemm.empty:
        return [Prose("No GEMM could be linked to its operator in these traces.")]
    median_us = gemm.groupby([*GEMM_SHAPE, *SETTING], dropna=False)["median_us"].median().unstack(SETTING)
    weight = gemm.groupby(GEMM_SHAPE, dropna=False)["sum_us"].sum()
    median_us = median_us.loc[weight.sort_values(ascending=False).index]
    figure = save(_gemm_grid(median_us.head(MOST_SHAPES)), folder, "gemm")
    caption = (
        f"Median GEMM time in µs over instances and ranks, {min(len(median_us), MOST_SHAPES)} of "
        f"{len(median_us)} shapes, most time first. The stronger the colour, the slower than in the "
        "fastest configuration for that shape."
    )
    return [Figure(figure, caption, "figures/gemm.png", "tables/gemm.csv"), _gemm_table(gemm)]


def _gemm_grid(median_us: pd.DataFrame) -> Drawing:
    """Rows are shapes, columns configurations; `median_us` holds µs."""
    times_us = median_us.to_numpy(dtype=float)
    slower = times_us / np.nanmin(times_us, axis=1, keepdims=True)
    # 25 % at least, so that noise is not painted like an effect.
    scale = max(float(np.nanmax(slower)) - 1, 0.25)
    settings = list(median_us.columns)
    shapes = [shape_name(shape) for shape in median_us.index]

    def cell(down: int, across: int) -> Cell | None:
        time_us, ratio = times_us[down, across], slower[down, across]
        if np.isnan(time_us):
            return None
        name = f"{shapes[down]}, {short_name(*settings[across])}"
        text = f"{time_us:.0f}" if len(settings) <= MOST_LABELLED else ""
        hover = f"{name}: {time_us:.1f} µs, {ratio:.2f} times the fastest"
        return Cell(text, "communication", (ratio - 1) / scale, hover)

    return cell_grid(shapes, [short_name(*setting) for setting in settings], cell, legend={})


def _gemm_table(gemm: pd.DataFrame) -> Table:
    figures = ["n", "median_us", "mad_us", "p95_us", "max_us", "cv", "tflops_median"]
    rows = gemm.groupby([*GEMM_SHAPE, *SETTING], dropna=False)[figures].median().reset_index()
    rows.insert(0, "configuration", [short_name(*pair) for pair in rows[SETTING].itertuples(index=False)])
    rows = rows.drop(columns=SETTING).sort_values(["op", "M", "N", "K", "configuration"])
    headings = {"tflops_median": Heading("median rate", "TFLOP/s"), "n": Heading("n per rank", "")}
    return Table(rows, "GEMMs by shape, medians over ranks", "tables/gemm.csv", headings, open_rows=0)
