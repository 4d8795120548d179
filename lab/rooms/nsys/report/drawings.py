"""The drawings of the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.report.figures import Cell as GridCell
from lab.report.figures import cell_grid, stacked_bars
from lab.rooms.nsys.answers.answer import CellData
from lab.rooms.nsys.answers.ceilings import ceilings
from lab.rooms.nsys.config import TYPES
from lab.rooms.nsys.flops import SIZES
from lab.rooms.nsys.report.results import Results

# Kernel classes drawn as one colour each: role -> (words, classes).
CLASS_COLOURS = {
    "computation": ("matrix products", ("gemm", "gemv", "attention", "conv")),
    "communication": ("elementwise", ("elementwise", "mask", "rope", "triton")),
    "memcpy": ("copies and gathers", ("copy", "index", "memcpy", "memset")),
    "ok": ("reductions, softmax, norms", ("reduce", "scan", "softmax", "norm", "splitk_reduce")),
    "fail": ("optimizer", ("optimizer",)),
    "unknown": ("other", ()),
}


def matrix_drawing(cells: pd.DataFrame) -> Drawing:
    known = [size for size in SIZES if size in set(cells["size"])]
    sizes = list(dict.fromkeys([*known, *cells["size"]]))
    columns = sorted(
        set(zip(cells["context"], cells["type"], strict=True)), key=lambda c: (TYPES.index(c[1]), c[0])
    )
    by_place = {
        (row.size_, row.context, row.type): row
        for row in cells.rename(columns={"size": "size_"}).itertuples()
    }

    def cell(down: int, across: int) -> GridCell | None:
        row = by_place.get((sizes[down], *columns[across]))
        if row is None:
            return None
        if row.wall_ms > 0:
            role = {"ok": "ok", "no_gpu_data": "warn"}.get(row.outcome, "unknown")
            return GridCell(f"{row.wall_ms:.3g} ms", role, 0.3, f"{row.cell}: {row.wall_ms:.3f} ms")
        return GridCell(
            str(row.outcome).replace("skipped_estimate", "too big"), "fail", 0.3, f"{row.cell}: {row.reason}"
        )

    words = {"forward_backward": "fwd+bwd"}
    names = [f"{words.get(kind, kind)} {context}" for context, kind in columns]
    return cell_grid(sizes, names, cell, legend={})


def phase_drawing(results: Results) -> Drawing:
    labels, rows = [], []
    for cell in _fullest(results.data):
        assert cell.tables is not None
        classes = cell.tables.classes
        for phase in ("forward", "backward", "optimizer_step"):
            found = classes[classes["phase"] == phase].set_index("class")["ms"]
            if len(found):
                labels.append(
                    f"{cell.found.cell.size} {cell.found.cell.context} {phase.removesuffix('_step')}"
                )
                rows.append(found)
    named = {kind for _, kinds in CLASS_COLOURS.values() for kind in kinds}
    parts = {
        role: np.array(
            [row[[k for k in row.index if (k in kinds if kinds else k not in named)]].sum() for row in rows]
        )
        for role, (_, kinds) in CLASS_COLOURS.items()
    }
    drawn = {role: lengths for role, lengths in parts.items() if lengths.any()}
    return stacked_bars(
        labels,
        drawn,
        axis="ms of kernel time per measured step",
        words={role: w for role, (w, _) in CLASS_COLOURS.items()},
    )


def _fullest(data: Sequence[CellData]) -> list[CellData]:
    """For each size and context the cell with most phases."""
    best: dict[tuple[str, int], CellData] = {}
    for cell in data:
        key = (cell.found.cell.size, cell.found.cell.context)
        if (
            cell.recording is not None
            and cell.recording.has_kernels
            and (
                key not in best or TYPES.index(cell.found.cell.type) > TYPES.index(best[key].found.cell.type)
            )
        ):
            best[key] = cell
    return list(best.values())


def matmul_shares(results: Results, contexts: list[int]) -> dict[str, np.ndarray]:
    """Size -> share of matrix products in inference [context], NaN where it was not recorded."""
    series: dict[str, np.ndarray] = {}
    for cell in results.data:
        row = cell.phase("forward")
        if row is not None and cell.found.cell.type == "forward" and row.kernels > 0:
            line = series.setdefault(cell.found.cell.size, np.full(len(contexts), np.nan))
            line[contexts.index(cell.found.cell.context)] = row.matmul_percent
    return series


def roofs_of(results: Results) -> dict[str, tuple[float, float]]:
    """GPU and dtype -> (TFLOP/s, TFLOP/s per FLOP/byte); only GPUs whose ceilings are known."""
    roofs: dict[str, tuple[float, float]] = {}
    for cell in results.data:
        known = ceilings(cell)
        if known and known.bytes_per_s and cell.recording is not None:
            result = cell.found.result
            name = f"{cell.recording.device}, {result.asked.dtype if result else 'fp32'}, {known.units}"
            roofs[name] = (known.flop_per_s / 1e12, known.bytes_per_s / 1e12)
    return roofs
