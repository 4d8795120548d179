"""Two figures of cells: the chain of each experiment, and its layers by kind of number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.core.words import plural
from lab.report.figures import Cell, cell_grid, save
from lab.report.parts import Block, Figure, Prose, Table
from lab.rooms.nan.analyze import NanTables
from lab.rooms.nan.columns import LINKS

LINK_TITLES = [
    "seen in\ninstructions",
    "stored to\nmemory",
    "in a module's\noutput",
    "in the\nlogits",
    "text\nchanged",
]
KINDS = {
    "nan": "NaN",
    "posinf": "+Inf",
    "neginf": "-Inf",
    "subnormal": "subnormal",
    "headroom": "headroom used",
}
MOST_GRIDS = 6


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


def layer_blocks(tables: NanTables, folder: Path) -> list[Block]:
    """One grid per experiment with bad numbers, and always the baseline's."""
    layers = tables.layers
    if layers.empty:
        return []
    bad = layers.groupby("experiment", sort=False)[["nan", "posinf", "neginf"]].sum().sum(axis=1)
    base = tables.baseline.label if tables.baseline else layers["experiment"].iloc[0]
    wanted = [label for label in bad.index if bad[label] > 0 or label == base][:MOST_GRIDS]
    blocks: list[Block] = []
    for number, label in enumerate(wanted):
        rows = layers[layers["experiment"] == label]
        counted = (
            rows[["nan", "posinf", "neginf", "subnormal"]].to_numpy().any() or rows["headroom"].notna().any()
        )
        if not counted:
            layer_count = plural(len(rows), "layer")
            blocks.append(
                Prose(f"{label}: 0 NaN and 0 infinity in outputs of {layer_count}; nothing else counted.")
            )
            continue
        name = f"layers_{number}"
        caption = (
            f"{label}: outputs of each layer by kind, all forwards together. NaN, Inf and subnormal are "
            "counts, headroom is in percent."
        )
        png = save(_layer_grid(rows), folder, name)
        blocks.append(Figure(png, caption, f"figures/{name}.png", "tables/layers.csv"))
    return [
        *blocks,
        Table(_without_placeholders(layers), "Every layer of every experiment", "tables/layers.csv"),
    ]


def _without_placeholders(layers: pd.DataFrame) -> pd.DataFrame:
    """The table of layers for the page: no step where there was no bad one."""
    bad = layers["first_bad_step"]
    steps = bad.where(bad >= 0).astype("Int64")
    table: pd.DataFrame = layers.drop(columns=["numel"]).assign(first_bad_step=steps)
    return table


def _layer_grid(rows: pd.DataFrame) -> Drawing:
    """Layers down, kinds across, phases beside each other."""
    phases = list(dict.fromkeys(rows["phase"]))
    names = list(dict.fromkeys(rows["layer"]))
    # NaN and headroom always; the other kinds only where they occur.
    kinds = [kind for kind in KINDS if kind in ("nan", "headroom") or rows[kind].to_numpy().any()]
    columns = [(phase, kind) for phase in phases for kind in kinds]
    grid = rows.set_index(["layer", "phase"])

    def cell(down: int, across: int) -> Cell | None:
        phase, kind = columns[across]
        if (names[down], phase) not in grid.index:
            return None
        row, place = grid.loc[(names[down], phase)], f"{names[down]}, {phase}"
        if np.isnan(float(row[kind])):
            return None
        return _headroom_cell(row, place) if kind == "headroom" else _count_cell(row, kind, place)

    titles = [f"{KINDS[kind]}\n{phase}" if len(phases) > 1 else KINDS[kind] for phase, kind in columns]
    legend = {"NaN or infinity": "fail", "subnormal": "memcpy", "headroom used": "computation"}
    return cell_grid(names, titles, cell, legend=legend)


def _headroom_cell(row: pd.Series, place: str) -> Cell:
    share = float(row["headroom"])
    role = "warn" if share > 0.5 else "computation"
    return Cell(f"{100 * share:.2g} %", role, min(1.0, share), f"{place}: |x| up to {row['absmax']:.5g}")


def _count_cell(row: pd.Series, kind: str, place: str) -> Cell:
    """The colour's strength is the share of the layer's numbers, on a log scale."""
    count = float(row[kind])
    hover = f"{place}: {count:.0f} {KINDS[kind]} of {row['numel']:.0f}"
    if row["first_bad_step"] >= 0:
        hover += f", first bad step {row['first_bad_step']}"
    if not count:
        return Cell(_short(count), "idle", 0.0, hover)
    share = count / max(float(row["numel"]), 1.0)
    strength = min(1.0, max(0.15, 1 + np.log10(max(share, 1e-6)) / 6))
    return Cell(_short(count), "memcpy" if kind == "subnormal" else "fail", strength, hover)


def _short(value: float) -> str:
    """`12`, `34k`, `21M`: what fits a cell."""
    for threshold, unit, prefix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= threshold:
            return f"{value / unit:.3g}{prefix}"
    return f"{value:.0f}"
