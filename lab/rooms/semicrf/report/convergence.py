"""Figures and tables of a training: convergence, results, durations."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.report.figures import lines, save
from lab.report.parts import Block, Figure, Table
from lab.report.terminal import Heading
from lab.rooms.semicrf.report.common import PILLS

TICKS = 12  # epochs named below a figure, at most
CURVES = {
    "dev_per": ("PER on the dev split", "Phone error rate on the dev split after each epoch."),
    "loss": (
        "training loss per utterance",
        "Negative log-likelihood per utterance; not comparable between heads, whose segmentations differ.",
    ),
}
RESULT_HEADINGS = {
    "phone_error_rate": Heading("test PER", ""),
    "boundary_f1_2": Heading("boundary F1 within 2 frames", ""),
    "duration_kl": Heading("duration KL", "nats"),
    "epoch_time_s": Heading("time per epoch", "s"),
}
DURATION_HEADINGS = {
    "mae": Heading("difference of means", "frames"),
    "ref_mean": Heading("reference mean", "frames"),
    "pred_mean": Heading("predicted mean", "frames"),
}


def results_table(results: pd.DataFrame) -> Table:
    """Every head and backend; columns that hold nothing are left out."""
    memory = {
        "gpu_peak_mib": results["peak_mem_bytes"] / 2**20,
        "host_peak_mib": results["peak_rss_bytes"] / 2**20,
    }
    shown = results.assign(**memory).drop(columns=["peak_mem_bytes", "peak_rss_bytes"])
    shown.insert(len(shown.columns) - 1, "file", shown.pop("file"))
    filled = [name for name in shown if not (shown[name].isna() | (shown[name] == "")).all()]
    title = "Test split, at the epoch that was best on dev"
    return Table(shown[filled], title, "tables/results.csv", RESULT_HEADINGS, PILLS)


def convergence(epochs: pd.DataFrame, folder: Path) -> list[Block]:
    """PER on the dev split and the loss, by epoch."""
    blocks: list[Block] = []
    for column, (axis, caption) in CURVES.items():
        figure = save(_epoch_lines(epochs, column, axis), folder, f"convergence_{column}")
        blocks.append(Figure(figure, caption, f"figures/convergence_{column}.png", "tables/epochs.csv"))
    return blocks


def _epoch_lines(epochs: pd.DataFrame, column: str, axis: str) -> Drawing:
    case = epochs["model"] + " " + epochs["backend"]
    wide = epochs.assign(case=case).pivot_table(index="epoch", columns="case", values=column)
    step = -(-len(wide) // TICKS)
    positions = [str(int(epoch)) if index % step == 0 else "" for index, epoch in enumerate(wide.index)]
    return lines(positions, {str(name): wide[name].to_numpy() for name in wide}, across="epoch", axis=axis)


def duration_blocks(durations: pd.DataFrame) -> list[Block]:
    """Mean durations per phone, reference and predicted."""
    columns = ["model", "backend", "phone", "ref_count", "ref_mean", "pred_count", "pred_mean", "mae"]
    title = "Durations by phone on the test split"
    return [Table(durations[columns], title, "tables/durations.csv", DURATION_HEADINGS)]
