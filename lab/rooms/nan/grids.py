"""How far bad numbers got: the chain of each experiment as a figure, and its layers as a table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lab.report.figures import Cell, cell_grid, save
from lab.report.parts import Block, Figure, Table
from lab.rooms.nan.analyze import NanTables
from lab.rooms.nan.columns import LINKS

LINK_TITLES = [
    "seen in\ninstructions",
    "stored to\nmemory",
    "in a module's\noutput",
    "in the\nlogits",
    "text\nchanged",
]


def chain_blocks(tables: NanTables, folder: Path) -> list[Block]:
    """The chain of each experiment, as a grid and as a table."""
    labels = list(tables.chains)
    roles = {"yes": "fail", "no": "ok", "?": "unknown"}

    def cell(down: int, across: int) -> Cell | None:
        state, evidence = getattr(tables.chains[labels[down]], LINKS[across])
        harmless = state == "yes" and LINKS[across] in ("instruction", "text")
        shown = "unknown" if state == "?" else state
        return Cell(shown, "warn" if harmless else roles[state], 0.55, f"{labels[down]}: {evidence}")

    legend = {"no": "ok", "yes": "fail", "yes, harmless by itself": "warn", "unknown": "unknown"}
    drawing = cell_grid(labels, LINK_TITLES, cell, legend=legend)
    caption = "From instruction to text: the last red link is the verdict; hover over a cell for its number."
    return [
        Figure(save(drawing, folder, "chain"), caption, "figures/chain.png", "tables/chain.csv"),
        Table(tables.chain, "The numbers behind each link", "tables/chain.csv", open_rows=0),
    ]


def layer_blocks(tables: NanTables) -> list[Block]:
    """The largest magnitudes and the bad numbers of every layer."""
    layers = tables.layers
    if layers.empty:
        return []
    return [Table(_without_placeholders(layers), "Every layer of every experiment", "tables/layers.csv")]


def _without_placeholders(layers: pd.DataFrame) -> pd.DataFrame:
    """The table of layers for the page: no step where there was no bad one."""
    bad = layers["first_bad_step"]
    steps = bad.where(bad >= 0).astype("Int64")
    table: pd.DataFrame = layers.drop(columns=["numel"]).assign(first_bad_step=steps)
    return table
