"""The sections of a profile's page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lab.recordings.gantt.bars import Bars, head, packed
from lab.recordings.views import drawing_of, op_roofs, summary_of
from lab.report.figures import roofline, save, stacked_bars
from lab.report.parts import Block, Figure, Points, Section, Table, Timeline
from lab.report.tables import write_csv
from lab.rooms.kernels.catalogue.build import Catalogue
from lab.rooms.kernels.catalogue.gantt.page import CAPTION
from lab.rooms.kernels.schema import LinearShape

MOST_BARS = 60_000  # on the page; with more it would weigh megabytes
_NAMES = (
    "kernel class op overload arg_summary phase count count_per_forward ranks dur_sum_us dur_median_us "
    "dur_p95_us time_share module arg_src"
)
KERNEL_COLUMNS = _NAMES.split()


def time_section(tables: dict[str, pd.DataFrame], out: Path) -> Section:
    blocks: list[Block] = []
    for name, by in (("by_class", "class"), ("by_op", "op"), ("by_module", "module (layers folded)")):
        blocks += _share_figure(tables[name], name, by, out)
    blocks.append(Table(tables["by_phase"], "Per forward of one rank", "tables/by_phase.csv"))
    if len(tables["by_module"]) > 1:
        blocks.append(Table(tables["by_module"], "By module", "tables/by_module.csv", open_rows=10))
    return Section("Where the time goes", blocks)


def _share_figure(table: pd.DataFrame, name: str, by: str, out: Path) -> list[Figure]:
    """Bars of the values with most time; nothing if no value is known."""
    top = table.head(14)
    labels = [str(value) or "unknown" for value in top.iloc[:, 0]]
    if labels == ["unknown"]:
        return []
    drawing = stacked_bars(
        labels,
        {"computation": top["time_ms"].to_numpy()},
        axis=f"ms of launches, by {by}",
        words={"computation": "time of launches"},
    )
    svg = save(drawing, out / "figures", name)
    caption = f"Time of launches by {by}; the top {len(top)} of {len(table)}."
    return [Figure(svg, caption, f"figures/{name}.png", f"tables/{name}.csv")]


def roof_section(catalogue: Catalogue, products: pd.DataFrame, out: Path) -> list[Section]:
    """Ops of the first rank under the GPU's roofs, and all matrix products; nothing without either."""
    blocks: list[Block] = []
    rank = catalogue.ranks[0]
    if rank.on_gpu:
        roofs = op_roofs(rank.trace)
        points, ceilings = drawing_of(roofs)
        table = pd.DataFrame(roofs.as_dict()).assign(**catalogue.marks)
        write_csv(table, out / "tables" / "roofline.csv")
        if points:
            across = "FLOP per byte (each tensor once)"
            drawing = roofline(points, roofs=ceilings, across=across, axis="TFLOP/s")
            svg = save(drawing, out / "figures", "roofline")
            caption = (
                "Each op by its arithmetic intensity and rate, under the roofs of the board's data sheet"
            )
            blocks.append(Figure(svg, caption, "figures/roofline.png", "tables/roofline.csv"))
        blocks.append(Points(summary_of(roofs)))
    if not products.empty:
        rows = products.sort_values("count", ascending=False)
        blocks.append(Table(rows, "Matrix products", "tables/products.csv", open_rows=12))
    return [Section("Work and roofs", blocks)] if blocks else []


def gantt_section(bars: Bars) -> Section:
    many = len(bars.row) > MOST_BARS
    shown = head(bars, MOST_BARS) if many else bars
    cut = f" The page shows the first {MOST_BARS:,} of {len(bars.row):,} bars; PNG and CSV hold all of them."
    caption = CAPTION + (cut if many else "")
    return Section(
        "Who ran when",
        [Timeline("gantt", packed(shown), caption, "tables/gantt.csv", "figures/gantt.png")],
    )


def kernel_section(catalogue: Catalogue) -> Section:
    caption = "Distinct launches, most time first"
    table = Table(catalogue.unique[KERNEL_COLUMNS], caption, "tables/unique_kernels.csv", limit=300)
    return Section("Distinct launches", [table])


def shape_section(shapes: Sequence[LinearShape], out: Path) -> list[Section]:
    """The Linear layers; nothing without a shape log."""
    if not shapes:
        return []
    frame: pd.DataFrame = pd.DataFrame([_shape_row(shape) for shape in shapes])
    write_csv(frame, out / "tables" / "linear_shapes.csv")
    table = Table(frame, "Every distinct call of a Linear", "tables/linear_shapes.csv", open_rows=8)
    return [Section("Linear layers", [table])]


def _shape_row(line: LinearShape) -> dict[str, object]:
    return {
        "rank": line.rank,
        "phase": line.phase,
        "module": line.module_path,
        "class": line.cls,
        "in_shape": _sizes(line.in_[0].shape) if line.in_ else "",
        "out_shape": _sizes(line.out[0].shape) if line.out else "",
        "weight_shape": _sizes(line.weight_shape_local),
        "placement": line.weight_placement,
        "dtype": line.in_[0].dtype if line.in_ else "",
        "count": line.count,
    }


def _sizes(sizes: Sequence[int] | None) -> str:
    return "×".join(map(str, sizes)) if sizes else ""


def doubts_section(catalogue: Catalogue, missing: Sequence[str]) -> Section:
    none = "Every launch has an op, every recorded call was found, every rank launched the same."
    return Section("What is in doubt", [Points([*missing, *catalogue.problems] or [none])])
