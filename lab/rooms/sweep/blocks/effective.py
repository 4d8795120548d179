"""Requested and effective settings, per collective and message size."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.report.figures import Cell, cell_grid, save
from lab.report.parts import Block, Figure, Prose
from lab.rooms.sweep.names import short_name, size_text
from lab.rooms.sweep.tables import SETTING, SweepTables, grouped, settings_of
from lab.rooms.sweep.verdict.honoured import knobs_of
from lab.rooms.sweep.verdict.time import on_cpu

PILLS = {
    **dict.fromkeys(("ok", "honoured"), "ok"),
    **dict.fromkeys(("clamped", "incomplete"), "warn"),
    **dict.fromkeys(("ignored", "failed", "missing", "broken"), "fail"),
    "unknown": "unknown",
}
VERDICTS = ("honoured", "unknown", "clamped", "ignored")  # from good to bad
MESSAGE = ["collective", "msg_bytes"]
MOST_MESSAGES = 10


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
        verdict = _worst(rows[f"{knob}_verdict"])
        asked, got = (_shown(rows[f"{which}_{knob}"]) for which in ("requested", "effective"))
        text = f"{asked} → {got}"
        return Cell(text, PILLS.get(verdict, "unknown"), 0.55, f"{text}: {verdict}")

    legend = {
        verdict: PILLS[verdict] for verdict in VERDICTS if (effective[f"{knob}_verdict"] == verdict).any()
    }
    names = [f"{collective.strip('_')}\n{size_text(size)}" for collective, size in messages]
    return cell_grid([short_name(*setting) for setting in settings], names, cell, legend=legend)


def _worst(verdicts: pd.Series) -> str:
    return str(max(verdicts, key=VERDICTS.index))


def _shown(values: pd.Series) -> str:
    """Numbers as a span, words one beside the other, a dash if unknown."""
    if pd.api.types.is_numeric_dtype(values):
        return _span(values)
    return ", ".join(sorted({word for word in values if word})) or "–"


def _span(values: pd.Series) -> str:
    """`27`, or `27–28` if ranks or repeats differ, or a dash if unknown."""
    positive = values[values > 0]
    if positive.empty:
        return "–"
    low, high = int(positive.min()), int(positive.max())
    return str(low) if low == high else f"{low}–{high}"
