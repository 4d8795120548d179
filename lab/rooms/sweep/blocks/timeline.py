"""Where the time goes: bars per configuration, panels per rank."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.report.figures import save, stacked_bars, stacked_panels
from lab.report.parts import Block, Figure, Table
from lab.rooms.sweep.knobs import Knobs
from lab.rooms.sweep.names import short_name
from lab.rooms.sweep.tables import PARTS, SETTING, SweepTables, grouped, settings_of, shown

BARS_CAPTION = (
    "The parts of the total time, mean over ranks; communication and copies only where no computation hides "
    "them. The diamond is the median total time over ranks, the line the range over ranks."
)
PANELS_CAPTION = (
    "Each rank on its own, on one scale. If one rank communicates little and the others much, the others are "
    "waiting for it."
)


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
