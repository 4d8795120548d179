"""The catalogue -> page, figures and words: where time and energy go, how near the ceilings, who ran when, what a
replay proved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from lab.report.figures import roofline, save, stacked_bars
from lab.report.page import (
    Block,
    Card,
    Chart,
    Figure,
    Page,
    Points,
    Prose,
    Section,
    Series,
    Status,
    Table,
    Timeline,
    write_page,
)
from lab.report.tables import terminal_table, write_csv
from lab.rooms.kernels import analyze
from lab.rooms.kernels.catalogue import gantt
from lab.rooms.kernels.catalogue.gantt_page import CAPTION
from lab.rooms.kernels.catalogue.launches import Catalogue
from lab.rooms.kernels.catalogue.roofs import roof_of
from lab.rooms.kernels.energy.joules import EnergyResult
from lab.rooms.kernels.replay.proof import Result as ReplayResult
from lab.rooms.kernels.schema import LinearShape

QUESTION = "Which kernels does the model launch, from which op with which arguments, and where do its time and energy go?"
CAP_CHARTED = 60_000  # bars on the page; past that the page would weigh megabytes
FOOTNOTES = (
    "A launch is a kernel, copy or fill as the profiler recorded it; calls of the runtime are no launches. Two launches are "
    "the same when kernel, grid, block, shared memory, registers, op, overload, arguments and phase are.",
    "Counts are of what ran: per forward means divided by the forwards in the trace and by the ranks, never by the tokens asked for.",
    "The op that owns a launch is the innermost one around it. Its arguments come from the recorder where the same call was "
    "recorded, else from the trace; a trace without names of arguments says `trace`.",
    "Time is kernel time; kernels of several streams may overlap, so its sum can exceed the busy time, which is a union.",
    "A product's ceiling is the lesser of the data sheet's arithmetic rate and its memory rate times the product's intensity "
    "(each factor read once, the result written once); caches can beat it for small factors.",
)


@dataclass(frozen=True)
class Findings:
    """What the analysis found; the protocol of lab.rooms.Findings."""

    verdict: list[str]
    status: Status
    files: list[Path]
    terminal: str
    lacking: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Extras:
    """What may lie beside the traces: the shape log, and what replay and energy runs of the same recording found.

    The homes are the folders of those runs as the page links them, "" or ending in a slash.
    """

    shapes: Sequence[LinearShape] = ()
    replay: ReplayResult | None = None
    replay_home: str = ""
    energy: EnergyResult | None = None
    energy_home: str = ""


def report(
    found: Catalogue,
    extras: Extras,
    *,
    out: Path,
    title: str,
    provenance: dict[str, dict[str, str]],
    files: list[Path],
    lacking: Sequence[str] = (),
    kind: str = "measured",
) -> Findings:
    """Write the summary tables, figures and report.html into `out`, and say what they show."""
    frame = analyze.frame_of(found)
    tables = _tables(found, frame)
    paths = [write_csv(table, out / "tables" / f"{name}.csv") for name, table in tables.items()]
    bars = gantt.bars_of(found.ranks)
    chart = gantt.write_gantt(bars, out)
    verdict = sentences(found, tables, bars)
    status: Status = "warn" if found.problems or lacking or found.signatures.device == "cpu" else "ok"
    sections = [
        _time_section(tables, out),
        *_roof_section(found, tables, out),
        _gantt_section(bars),
        _kernel_section(found),
        *_shape_section(extras.shapes, out),
        *replay_section(extras.replay, extras.replay_home),
        *energy_section(extras.energy, out, extras.energy_home),
        _doubts(found, lacking),
    ]
    page = Page(
        title=title,
        question=QUESTION,
        verdict=verdict,
        status=status,
        cards=_cards(found, tables, bars),
        sections=sections,
        provenance=provenance,
        footnotes=FOOTNOTES,
        room="kernels",
        kind=kind,
    )
    page_path = write_page(page, out / "report.html")
    figures = [
        out / block.png for section in sections for block in section.blocks if isinstance(block, Figure)
    ]
    terminal = _terminal(verdict, found, page_path)
    return Findings(verdict, status, [*files, *paths, *chart, *figures, page_path], terminal, list(lacking))


def _tables(found: Catalogue, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    signatures = found.signatures
    return {
        "by_phase": analyze.phases(frame, signatures.forwards, len(signatures.ranks)),
        "by_class": analyze.shares(frame, "class"),
        "by_op": analyze.shares(frame, "op"),
        "by_module": analyze.shares(frame, "module"),
        "products": analyze.products(signatures.signatures, roof_of(signatures.gpu)),
        "argument_sources": analyze.sources(found),
    }


def sentences(found: Catalogue, tables: dict[str, pd.DataFrame], bars: gantt.Bars) -> list[str]:
    """The verdict: how much, where, how busy, and from where the arguments are known."""
    signatures = found.signatures
    total_ms = sum(one.dur_us for one in found.launches) / 1000
    what = "launches" if signatures.device == "gpu" else "CPU ops that own work"
    forwards = ", ".join(f"{count} {phase}" for phase, count in signatures.forwards.items())
    over = f" over {len(signatures.ranks)} ranks" if len(signatures.ranks) > 1 else ""
    said = [
        f"{len(found.launches)} {what}, {len(signatures.signatures)} distinct, {total_ms:.2f} ms of their own time"
        f"{f' in {forwards}' if forwards else ''}{over}."
    ]
    if signatures.device == "cpu":
        said.append(
            "There are no kernels in this trace: ops stand in for launches, and their times are those of the CPU."
        )
    top = tables["by_class"].iloc[0]
    said.append(
        f"Most time goes to {top['class']}: {top['share_percent']:.0f} % in {top['launches']} launches."
    )
    said += [_phase_sentence(row) for row in tables["by_phase"].to_dict("records") if row["forwards"]]
    said += _busy_sentences(gantt.busy(bars), signatures.device)
    return [*said, *_source_sentence(tables["argument_sources"])]


def _phase_sentence(row: dict[Any, Any]) -> str:
    return (
        f"A {row['phase']} forward: {row['launches_per_forward']:.0f} launches, "
        f"{row['kernel_ms_per_forward']:.3f} ms of their time."
    )


def _busy_sentences(busy: pd.DataFrame, device: str) -> list[str]:
    said: list[str] = []
    if device == "cpu":
        return said
    for row in busy.to_dict("records"):
        if row["span_ms"] > 0:
            beside = (
                f"; {row['overlap_ms']:.2f} ms of compute runs beside communication or copies"
                if row["overlap_ms"] > 0
                else ""
            )
            said.append(
                f"GPU {row['device']} of rank {row['rank']} is busy {100 * row['busy_ms'] / row['span_ms']:.0f} % of "
                f"{row['span_ms']:.1f} ms under the profiler{beside}."
            )
    return said


def _source_sentence(sources: pd.DataFrame) -> list[str]:
    parts = ", ".join(f"{row.source} {row.share_percent:.0f} %" for row in sources.itertuples())
    return [f"Arguments of the owning ops by time: {parts}."]


def _cards(found: Catalogue, tables: dict[str, pd.DataFrame], bars: gantt.Bars) -> list[Card]:
    signatures = found.signatures
    busy = gantt.busy(bars)
    cards = [
        Card(
            "launches",
            f"{len(found.launches)}",
            "tables/launches.jsonl",
            note=f"{len(signatures.ranks)} rank(s)",
        ),
        Card("distinct launches", f"{len(signatures.signatures)}", "tables/unique_kernels.csv"),
        Card(
            "time of launches",
            f"{sum(one.dur_us for one in found.launches) / 1000:.2f}",
            "tables/by_class.csv",
            unit="ms",
        ),
    ]
    for row in tables["by_phase"].to_dict("records"):
        if row["forwards"]:
            cards.append(
                Card(
                    f"{row['phase']} forward",
                    f"{row['kernel_ms_per_forward']:.3f}",
                    "tables/by_phase.csv",
                    unit="ms",
                    note=f"{row['launches_per_forward']:.0f} launches",
                )
            )
    if signatures.device == "gpu" and len(busy):
        cards.append(
            Card(
                "busy",
                f"{100 * busy['busy_ms'].sum() / busy['span_ms'].sum():.0f}",
                "tables/gantt.csv",
                unit="%",
                note="of the recorded span, under the profiler",
            )
        )
    return cards


def _time_section(tables: dict[str, pd.DataFrame], out: Path) -> Section:
    blocks: list[Block] = []
    for name, words in (("by_class", "class"), ("by_op", "op"), ("by_module", "module (layers folded)")):
        table = tables[name].head(14)
        labels = [str(value) or "not known" for value in table.iloc[:, 0]]
        if labels == ["not known"]:
            continue
        drawing = stacked_bars(
            labels,
            {"computation": table["time_ms"].to_numpy()},
            axis=f"ms of launches, by {words}",
            words={"computation": "time of launches"},
        )
        svg = save(drawing, out / "figures", name)
        blocks.append(
            Figure(
                svg,
                f"Time of launches by {words}; the first {len(table)} of {len(tables[name])}.",
                f"figures/{name}.png",
                f"tables/{name}.csv",
            )
        )
    blocks.append(Table(tables["by_phase"], "Per forward of one rank", "tables/by_phase.csv"))
    if len(tables["by_module"]) > 1:
        blocks.append(Table(tables["by_module"], "By module", "tables/by_module.csv", open_rows=10))
    return Section("Where the time goes", blocks)


def _roof_section(found: Catalogue, tables: dict[str, pd.DataFrame], out: Path) -> list[Section]:
    table, roof = tables["products"], roof_of(found.signatures.gpu)
    if table.empty:
        return []
    blocks: list[Block] = []
    if found.signatures.device == "gpu":
        halves = any(dtype in ("float16", "bfloat16") for dtype in table["dtype"])
        roofs = (
            {
                f"{roof.gpu}, data sheet": (
                    (roof.half_flops if halves else roof.single_flops) / 1e12,
                    roof.bytes_per_s / 1e12,
                )
            }
            if roof
            else {}
        )
        series: dict[str, list[tuple[float, float, str]]] = {}
        for row in table.to_dict("records"):
            hover = f"{row['kernel']}: {row['rate_tflops']:.2f} TFLOP/s, {row['count']} times"
            series.setdefault(str(row["phase"] or "all"), []).append(
                (row["intensity"], row["rate_tflops"], hover)
            )
        svg = save(
            roofline(series, roofs=roofs, across="FLOP per byte (each factor read once)", axis="TFLOP/s"),
            out / "figures",
            "roofline",
        )
        blocks.append(
            Figure(
                svg,
                "Matrix products by what they ask of memory and what they reach.",
                "figures/roofline.png",
                "tables/products.csv",
            )
        )
        if roof is None:
            blocks.append(
                Prose(
                    f"The ceilings of {found.signatures.gpu or 'this GPU'} are not known here, so none is drawn."
                )
            )
    blocks.append(
        Table(
            table.sort_values("count", ascending=False),
            "Matrix products",
            "tables/products.csv",
            open_rows=12,
        )
    )
    return [Section("Matrix products" + (" against the GPU's ceilings" if roof else ""), blocks)]


def _gantt_section(bars: gantt.Bars) -> Section:
    shown = bars if len(bars.row) <= CAP_CHARTED else gantt.head(bars, CAP_CHARTED)
    cut = (
        ""
        if shown is bars
        else f" The page holds the first {CAP_CHARTED} of {len(bars.row)} bars, the picture and the data all."
    )
    return Section(
        "Who ran when",
        [Timeline("gantt", gantt.packed(shown), CAPTION + cut, "tables/gantt.csv", "figures/gantt.png")],
    )


def _kernel_section(found: Catalogue) -> Section:
    columns = [
        "kernel",
        "class",
        "op",
        "overload",
        "arg_summary",
        "phase",
        "count",
        "count_per_forward",
        "ranks",
        "dur_sum_us",
        "dur_median_us",
        "dur_p95_us",
        "time_share",
        "module",
        "arg_src",
    ]
    caption = "Distinct launches, most time first"
    return Section(
        "Distinct launches", [Table(found.unique[columns], caption, "tables/unique_kernels.csv", limit=300)]
    )


def _shape_section(shapes: Sequence[LinearShape], out: Path) -> list[Section]:
    if not shapes:
        return []
    rows = [
        {
            "rank": one.rank,
            "phase": one.phase,
            "module": one.module_path,
            "class": one.cls,
            "in_shape": _shape(one.in_[0].shape) if one.in_ else "",
            "out_shape": _shape(one.out[0].shape) if one.out else "",
            "weight_shape": _shape(one.weight_shape_local),
            "placement": one.weight_placement,
            "dtype": one.in_[0].dtype if one.in_ else "",
            "count": one.count,
        }
        for one in shapes
    ]
    frame: pd.DataFrame = pd.DataFrame(rows)
    write_csv(frame, out / "tables" / "linear_shapes.csv")
    return [
        Section(
            "Linear layers",
            [Table(frame, "Every distinct call of a Linear", "tables/linear_shapes.csv", open_rows=8)],
        )
    ]


def _shape(sizes: Sequence[int] | None) -> str:
    return "×".join(map(str, sizes)) if sizes else ""


def replay_section(result: ReplayResult | None, home: str = "") -> list[Section]:
    """Replayed against recorded times, the error of each, coverage and closure; nothing where nothing was replayed."""
    if result is None:
        return []
    where = f"{home}tables/replay.csv"
    met = {True: "met", False: "not met", None: "not tested here"}
    coverage = pd.DataFrame(
        [
            {
                "launches_of": name,
                "launches": one.launches,
                "rebuilt": one.rebuilt_launches,
                "same": one.same_launches,
                "time_us": one.time_us,
                "same_of_time_percent": one.percent("same", "time_us"),
            }
            for name, one in result.coverage.items()
        ]
    )
    closure = pd.DataFrame(
        [
            {
                "forward": one.name,
                "recorded_us": one.compared_us,
                "replayed_us": one.replay_sum_us,
                "off_percent": one.closure_pct,
                "busy_us": one.busy_us,
                "wall_us": one.wall_us,
            }
            for one in result.closure
        ]
    )
    said = [f"{name.replace('_', ' ')}: {met[held]}" for name, held in result.bars.items()]
    blocks: list[Block] = [Points([*said, *result.notes]), *_replay_charts(result, where)]
    blocks += [Table(coverage, "Coverage", where), Table(closure, "Sums of a forward", where)]
    return [Section("Replay", blocks)]


def _replay_charts(result: ReplayResult, where: str) -> list[Block]:
    """Recorded against replayed medians, and the error of each over its time; series by proof."""
    roles = {"same kernel": "ok", "other kernel or none": "fail"}
    both: dict[str, list[tuple[Any, ...]]] = {name: [] for name in roles}
    errors: dict[str, list[tuple[Any, ...]]] = {name: [] for name in roles}
    for row in result.rows:
        median = float(row.us["median"]) if row.us else 0.0
        if median <= 0 or row.trace_median_us <= 0:
            continue
        name = "same kernel" if row.same_kernel == "exact" else "other kernel or none"
        hover = f"{row.kernel} ({row.op}): {row.trace_median_us:.2f} µs recorded, {median:.2f} µs replayed, {row.count} times"
        both[name].append((math.log10(row.trace_median_us), math.log10(median), hover))
        if row.err_pct is not None and math.isfinite(row.err_pct):
            errors[name].append((math.log10(row.trace_median_us), row.err_pct, hover))

    def series(points: dict[str, list[tuple[Any, ...]]]) -> list[Series]:
        return [Series(name, roles[name], [some]) for name, some in points.items() if some]

    across = "log10 of the recorded µs"
    caption = (
        f"Median time of each kernel, recorded and replayed ({result.mode}); on the line they are equal."
    )
    charts = [
        Chart("replay", across, ["log10 of the replayed µs"], series(both), caption, where, diagonal=True),
        Chart(
            "replay_error",
            across,
            ["error %"],
            series(errors),
            "Error of each kernel's median: short kernels vary most.",
            where,
        ),
    ]
    return [chart for chart in charts if chart.series]


def energy_section(result: EnergyResult | None, out: Path, home: str = "") -> list[Section]:
    """Joules by class, op and call, the closure, and what the audit refused; nothing where nothing was measured."""
    if result is None:
        return []
    where = f"{home}tables/energy.csv"
    rows = pd.DataFrame(
        [
            {
                "kernel": row.kernel,
                "class": row.class_,
                "op": row.op,
                "count": row.count,
                "gross_j": row.gross_j,
                "net_j": row.net_j,
                "power_w": row.watts,
                "run_net_j": row.run_net_j,
                "measured": row.measured,
                "flags": " ".join(row.flags),
            }
            for row in result.rows
        ]
    )
    blocks: list[Block] = [Points([*_energy_facts(result), *result.notes])]
    for by in ("class", "op") if len(rows) else ():
        joules = rows.groupby(by)["run_net_j"].sum().sort_values(ascending=False).head(14)
        drawing = stacked_bars(
            [str(name) for name in joules.index],
            {"computation": joules.to_numpy(dtype=float)},
            axis=f"net J of a run, by {by}",
            words={"computation": "net energy"},
        )
        blocks.append(
            Figure(
                save(drawing, out / "figures", f"energy_by_{by}"),
                f"Net energy by {by}; calls that were not measured are priced "
                "at the power of those that were.",
                f"figures/energy_by_{by}.png",
                where,
            )
        )
    blocks.append(Table(rows, "By distinct call", where, open_rows=12))
    refused = [f"REFUSED: {text}" for text in result.refused] or ["No figure was refused."]
    return [Section("Energy", blocks), Section("Audit", [Points(refused)])]


def _energy_facts(result: EnergyResult) -> list[str]:
    facts = [f"Measured by {result.meter}, {result.method}."]
    if result.model is not None:
        facts.append(
            f"The model itself: {_j(result.model.j_per_run)} a run, {_j(result.model.j_per_token)} a token; by counter "
            f"{_j(result.model.counter_j)}, by integral of power {_j(result.model.integral_j)}."
        )
    if result.closure is not None:
        facts.append(
            f"Parts against the whole: {result.closure.predicted_j:.3f} J predicted, {result.closure.measured_j:.3f} J measured "
            f"({result.closure.total_pct:+.1f} %); net {result.closure.net_pct:+.1f} %."
        )
    return facts


def _j(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4g} J"


def _doubts(found: Catalogue, lacking: Sequence[str]) -> Section:
    said = [*lacking, *found.problems] or [
        "Every launch has an op, every recorded call was found, every rank launched the same."
    ]
    return Section("What is in doubt", [Points(said)])


def _terminal(verdict: Sequence[str], found: Catalogue, page: Path) -> str:
    columns = ["kernel", "class", "op", "phase", "count", "dur_sum_us", "dur_median_us", "time_share"]
    lines = [
        verdict[0],
        *(f"- {sentence}" for sentence in verdict[1:]),
        *(f"! {text}" for text in found.problems),
    ]
    return "\n".join(
        [
            *lines,
            "",
            terminal_table(shortened(found.unique[columns].head(12)), width=118),
            "",
            f"report: {page}",
        ]
    )


def shortened(frame: pd.DataFrame, most: int = 40) -> pd.DataFrame:
    """Long texts cut in their middle, for a terminal."""
    table: pd.DataFrame = frame.map(
        lambda one: one if not isinstance(one, str) or len(one) <= most else f"{one[: most - 14]}…{one[-13:]}"
    )
    return table


def page_of_replay(
    out: Path,
    title: str,
    verdict: list[str],
    status: str,
    result: ReplayResult | EnergyResult,
    provenance: dict[str, dict[str, str]],
) -> Path:
    """A page of its own for a replay or an energy run."""
    sections = replay_section(result) if isinstance(result, ReplayResult) else energy_section(result, out)
    state: Status = "ok" if status == "ok" else "warn" if status == "warn" else "fail"
    page = Page(
        title=title,
        question=QUESTION,
        verdict=verdict,
        status=state,
        sections=sections,
        provenance=provenance,
        footnotes=FOOTNOTES[:2],
        room="kernels",
    )
    return write_page(page, out / "report.html")
