"""The sections of a profile's page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from lab.recordings.gantt.bars import Bars, head, packed
from lab.recordings.views import drawing_of, op_roofs, summary_of
from lab.report.figures import roofline, save, stacked_bars
from lab.report.parts import Block, Chart, Figure, Points, Section, Series, Table, Timeline
from lab.report.tables import write_csv
from lab.rooms.kernels.catalogue.build import Catalogue
from lab.rooms.kernels.catalogue.gantt import CAPTION
from lab.rooms.kernels.energy.choice import ENERGY_TABLE
from lab.rooms.kernels.energy.evaluate import EnergyResult
from lab.rooms.kernels.replay.args import TABLE
from lab.rooms.kernels.replay.proof.rows import EXACT, OP_ONLY, Coverage, Result, Row
from lab.rooms.kernels.replay.proof.summary import CPU_ONLY, QUESTIONS

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
    caption = f"Time of launches by {by}; the top {len(top)} of {len(table)}."
    axis = f"ms of launches, by {by}"
    return [_bar_figure(labels, top["time_ms"], axis, caption, name, f"tables/{name}.csv", out)]


def _bar_figure(
    labels: Sequence[str], values: pd.Series, axis: str, caption: str, name: str, csv: str, out: Path
) -> Figure:
    bars = {"computation": values.to_numpy(dtype=float)}
    drawing = stacked_bars(labels, bars, axis=axis, words={"computation": axis.partition(",")[0]})
    return Figure(save(drawing, out / "figures", name), caption, f"figures/{name}.png", csv)


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


def doubts_section(catalogue: Catalogue, missing: Sequence[str]) -> Section:
    none = "Every launch has an op, every recorded call was found, every rank launched the same."
    return Section("What is in doubt", [Points([*missing, *catalogue.problems] or [none])])


ROLES = {"same kernel": "ok", "op on the CPU, no kernel": "warn", "other kernel or none": "fail"}
NAMES = {EXACT: "same kernel", OP_ONLY: "op on the CPU, no kernel"}
MET = {True: "met", False: "not met", None: "not tested here"}


def replay_section(result: Result) -> list[Section]:
    bars = [f"{name.replace('_', ' ')}: {MET[met]}" for name, met in result.bars.items()]
    asked = f"{result.mode} answers: {QUESTIONS.get(result.mode, 'unknown mode')}"
    heading = [CPU_ONLY] if result.device == "cpu" else [asked]
    blocks: list[Block] = [Points([*heading, *bars, *result.notes]), *_charts(result)]
    blocks.append(Table(_coverage(result), "Coverage", TABLE))
    if any(one.compared_us for one in result.closure):
        blocks.append(Table(_closure(result), "Sums per forward", TABLE))
    return [Section("Op replay" if result.device == "cpu" else "Replay", blocks)]


def _coverage(result: Result) -> pd.DataFrame:
    rows = [
        {
            "launches_of": name,
            "launches": cover.launches,
            "rebuilt": cover.rebuilt_launches,
            "time_us": cover.time_us,
            **_proof(cover, result.device),
        }
        for name, cover in result.coverage.items()
    ]
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def _proof(cover: Coverage, device: str) -> dict[str, Any]:
    """How much was proven; on a CPU a kernel cannot be proven, which is not the same as 0 %."""
    if device == "cpu":
        return {"same_kernel": "not looked at (CPU)"}
    return {"same_kernel": cover.same_launches, "same_of_time_percent": cover.percent("same", "time_us")}


def _closure(result: Result) -> pd.DataFrame:
    rows = [
        {
            "forward": forward.name,
            "recorded_us": forward.compared_us,
            "replayed_us": forward.replay_sum_us,
            "off_percent": forward.closure_pct,
            "busy_us": forward.busy_us,
            "wall_us": forward.wall_us,
        }
        for forward in result.closure
    ]
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def _charts(result: Result) -> list[Block]:
    """Recorded against replayed medians, and the error of each over its time."""
    medians: dict[str, list[tuple[float, float, str]]] = {name: [] for name in ROLES}
    for row in result.rows:
        median = float(row.us["median"]) if row.us else 0.0
        if median <= 0 or row.trace_median_us <= 0:
            continue
        name = NAMES.get(row.same_kernel, "other kernel or none")
        across, hover = math.log10(row.trace_median_us), _hover(row, median)
        medians[name].append((across, math.log10(median), hover))
    axis = "log10 of the recorded µs"
    noun = "op" if result.device == "cpu" else "kernel"
    equal = f"Median time of each {noun}, recorded and replayed ({result.mode}); equal on the diagonal."
    series = [Series(name, ROLES[name], points) for name, points in medians.items() if points]
    chart = Chart("replay", axis, "log10 of the replayed µs", series, equal, TABLE, diagonal=True)
    return [chart] if series else []


def _hover(row: Row, median_us: float) -> str:
    times = f"{row.trace_median_us:.2f} µs recorded, {median_us:.2f} µs replayed"
    return f"{row.kernel} ({row.op}): {times}, {row.count} times"


_ENERGY_COLUMNS = "kernel class op count gross_j net_j watts run_net_j measured flags"


def energy_section(result: EnergyResult, out: Path) -> list[Section]:
    """Joules by class and of each distinct call; the page's verdict has the closure and what was refused."""
    fields = [msgspec.to_builtins(row) | {"flags": " ".join(row.flags)} for row in result.rows]
    rows = pd.DataFrame(fields, columns=_ENERGY_COLUMNS.split())
    blocks: list[Block] = [Points(result.notes)] if result.notes else []
    if len(rows):
        joules = rows.groupby("class")["run_net_j"].sum().sort_values(ascending=False)
        caption = "Net energy by class. Calls that were not measured take the net power of a measured call."
        axis, labels = "net J per run, by class", [str(name) for name in joules.index]
        blocks.append(_bar_figure(labels, joules, axis, caption, "energy_by_class", ENERGY_TABLE, out))
    blocks.append(Table(rows, "By distinct call", ENERGY_TABLE, open_rows=12))
    return [Section("Energy", blocks)]
