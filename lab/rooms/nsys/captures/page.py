"""The page and tables of one recording, whatever tool made it: phases, classes, kernels, Gantt, integrity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.core.plan import Findings
from lab.core.words import plural, printable
from lab.recordings.capture import Capture
from lab.recordings.gantt import bars_of_capture
from lab.recordings.gantt.bars import FAMILIES, LABELS, Bars, busy_table, packed
from lab.recordings.integrity.words import bound, busy_and_idle, marked, sentences
from lab.recordings.lacks import AXES, Axis, counted, holes, verdict_of
from lab.recordings.names import CLASSES, short_name
from lab.recordings.processes import process_label
from lab.recordings.projection import project, with_origins
from lab.recordings.tables import Table as Columns
from lab.recordings.views import drawing_of, op_roofs, row_classes, summary_of
from lab.report.figures import roofline, save
from lab.report.page import write_page
from lab.report.parts import Block, Card, Figure, Page, Points, Prose, Section, Status, Table, Timeline
from lab.report.provenance import provenance
from lab.report.tables import write_csv
from lab.report.terminal import Heading, number
from lab.rooms.nsys.captures.hardware import TRAFFIC
from lab.rooms.nsys.captures.summary import NO_KERNELS, TOP, Summary, unknowns
from lab.rooms.nsys.captures.summary_text import TOOLS, summaries_text

CAPTION = (
    "Every GPU operation by process, device and stream. Grey bands are steps; red shade is compute beside "
    "communication or copies; the darker a pixel, the busier it is. Scroll to zoom, drag to move, click for "
    "what is known of an operation. Keys: arrows, + and -, 0, n and p for the next and previous that fits."
)


def write_recording(capture: Capture, per_process: Sequence[Summary], out: Path) -> Findings:
    """report.html and tables/*.csv of one recording in `out`. Raises StorageError where it cannot write."""
    bars = bars_of_capture(project(capture, origins=with_origins(capture)[1])) if len(capture.ops) else None
    tables = recording_tables(capture, per_process)
    roofs = op_roofs(capture)
    if roof_sentences := summary_of(roofs):
        tables["roofline"] = pd.DataFrame(roofs.as_dict()).assign(bound=bound(capture.lacks, "gpu"))
    if bars is not None:
        gantt = bar_table(bars).assign(bound=bound(capture.lacks, "gpu"))
        tables |= {"gantt": gantt, "busy": busy_table(bars, capture.lacks)}
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in tables.items()]
    unknown = unknowns(capture)
    verdict = [*_sentences(capture, len(per_process), unknown), *roof_sentences]
    status: Status = "ok" if verdict_of(capture.lacks) == "complete" and not unknown else "warn"
    recorder = {"tool": _tool(capture), "version": capture.version or "unknown"}
    recorder |= {"schema": capture.schema or "none", **{name: str(v) for name, v in capture.info.items()}}
    offers = [offer.sentence for summary in per_process for offer in summary.offers[:8]]
    page = Page(
        title=capture.source.name,
        question="What ran on the GPU, for how long, and is the recording complete?",
        verdict=verdict,
        status=status,
        cards=_cards(capture, per_process),
        sections=[*_sections(capture, per_process, tables, bars), *_roofline(tables, roofs, out)],
        provenance=provenance(capture.source, None) | {"Recorder": recorder},
        footnotes=[*offers, *capture.problems[:20]],
        room="recording",
    )
    files.insert(0, write_page(page, out / "report.html"))
    text = summaries_text(per_process) if per_process else "\n".join([*verdict, ""])
    processes = len(capture.processes)
    return Findings(
        verdict=verdict,
        status=status,
        files=files,
        terminal=f"{printable(text)}{files[0]}",
        lacking=sentences(holes(capture.lacks), processes=processes) + [NO_KERNELS] * (NO_KERNELS in unknown),
        incomplete=sentences(counted(capture.lacks), processes=processes),
    )


def _tool(capture: Capture) -> str:
    return TOOLS.get(capture.collector, capture.collector)


def _sentences(capture: Capture, num_processes: int, unknown: Sequence[str]) -> list[str]:
    kernels = capture.ops.where(capture.kernels)
    subject = (
        f"{marked(bound(capture.lacks, 'gpu'))}{plural(len(kernels), 'kernel')}, "
        f"{int(kernels.dur_ns.sum()) / 1e6:,.3f} ms of kernel time, "
        f"of {plural(max(num_processes, 1), 'process')}, recorded by {_tool(capture)}."
    )
    axes = ", ".join(f"{axis} {verdict_of(capture.lacks, axis)}" for axis in AXES)
    untraced = [lack.text for lack in capture.lacks if lack.untraced]
    doubts = [f"{text[0].upper()}{text[1:]}." for text in (*untraced, *unknown)]
    return [subject, f"The recording is {verdict_of(capture.lacks)} ({axes}).", *doubts]


def _cards(capture: Capture, per_process: Sequence[Summary]) -> list[Card]:
    cards = [Card("recording", verdict_of(capture.lacks), "tables/integrity.csv")]
    for summary in per_process[:4]:
        step = summary.phases[0]
        if step.kernels != (0,):
            steps = f"mean of {plural(len(summary.steps), 'step')}" if summary.steps else "in all"
            label = f"kernel time of {summary.label}" if len(per_process) > 1 else "kernel time"
            note = marked(bound(summary.lacks, "gpu")) + steps
            cards.append(Card(label, number(step.kernel_ms, 3), "tables/phases.csv", "ms", note))
    return cards


def _sections(
    capture: Capture, per_process: Sequence[Summary], tables: dict[str, pd.DataFrame], bars: Bars | None
) -> list[Section]:
    several = len(capture.processes) > 1
    over = "all measured steps together"
    phases = "Means over the measured steps; warm-up and what lies outside of steps are left out"
    if not any(summary.steps for summary in per_process):
        num_left_out = sum(summary.warmup_left_out for summary in per_process)
        warmup = f"without {plural(num_left_out, 'operation')} of" if num_left_out else "with any"
        over = "the whole recording"
        phases = f"No range is a step: the whole recording, {warmup} warm-up"
        phases += "" if num_left_out else " in it"
    kernels = f"The {TOP} costliest kernels by name, over the whole recording; the CSV has all"
    shown = {
        name: frame
        if several or name in ("busy", "integrity")
        else frame.drop(columns="process", errors="ignore")
        for name, frame in tables.items()
    }
    metrics = "Mean percent of the peak of the samples inside the GPU work of a range or kernel"
    blocks: dict[str, list[Block]] = {
        "Integrity": _integrity_blocks(capture, tables["integrity"]),
        "Phases": _table_of(shown, "phases", phases),
        "Kernel classes": _table_of(shown, "classes", f"Kernel time by class, over {over}"),
        "Costliest kernels": _table_of(shown, "kernels", kernels, top=TOP, open_rows=60),
        "GPU metrics": _table_of(shown, "gpu_metrics", metrics),
        "Unified memory": _table_of(shown, "unified_memory", "MB that migrated, and page faults"),
    }
    if bars is not None:
        chart = Timeline("gantt", packed(bars), CAPTION, "tables/gantt.csv")
        blocks["Gantt"] = [chart, *_table_of(shown, "busy", "Times of each device")]
    if several:
        blocks["Processes"] = _table_of(shown, "processes", "One row per process")
    return [Section(title, parts) for title, parts in blocks.items() if parts]


def _roofline(tables: dict[str, pd.DataFrame], roofs: Columns, out: Path) -> list[Section]:
    """Every op's work, rate and share of its board's roof; nothing without recorded ops."""
    points, ceilings = drawing_of(roofs)
    if not points:
        return []
    drawing = roofline(points, roofs=ceilings, across="FLOP per byte (each tensor once)", axis="TFLOP/s")
    svg = save(drawing, out / "figures", "roofline")
    caption = "Each op by its arithmetic intensity and rate, under the roofs of the board's data sheet"
    figure = Figure(svg, caption, "figures/roofline.png", "tables/roofline.csv")
    return [Section("Roofline", [figure, *_table_of(tables, "roofline", "Ops by time", open_rows=12)])]


def _integrity_blocks(capture: Capture, table: pd.DataFrame) -> list[Block]:
    if not capture.lacks:
        return [Prose("Every launch has its rows, and every row its launch: nothing is known to be missing.")]
    points = Points(sentences(capture.lacks, processes=len(capture.processes)))
    return [points, Table(table, "What the recording lacks, by rule", "tables/integrity.csv")]


def _table_of(
    tables: dict[str, pd.DataFrame], name: str, caption: str, *, top: int | None = None, open_rows: int = 24
) -> list[Block]:
    """The table as a block, or no block without rows; of `top` rows per process. The CSV has all columns."""
    frame = tables.get(name)
    if frame is None or frame.empty:
        return []
    if top is not None:
        frame = frame.groupby("process", sort=False).head(top) if "process" in frame else frame.head(top)
    if name == "kernels":
        frame = frame.drop(columns="name")
    headings = {column: Heading(*f"{words}, ".split(", ")[:2]) for column, words in TRAFFIC.items()}
    return [Table(frame, caption, f"tables/{name}.csv", headings, open_rows=open_rows, limit=300)]


# The tables, one per CSV file; every row names its process.


def recording_tables(capture: Capture, per_process: Sequence[Summary]) -> dict[str, pd.DataFrame]:
    """Tables by the name of their CSV; every row names its process."""
    makers = {
        "phases": _phase_rows,
        "classes": _class_rows,
        "gpus": _gpu_rows,
        "gpu_metrics": _metric_rows,
        "unified_memory": _traffic_rows,
    }
    rows = {
        name: [{"process": process.label, **row} for process in per_process for row in rows_of(process)]
        for name, rows_of in makers.items()
    }
    tables = {
        name: pd.DataFrame(of_name).drop(columns="path", errors="ignore")
        for name, of_name in rows.items()
        if of_name
    }
    return tables | {
        "kernels": _kernel_table(capture),
        "integrity": _integrity_table(capture),
        "processes": _process_table(capture),
    }


def _path_text(summary: Summary, path: Sequence[str]) -> str:
    return "/".join(path) or ("step" if summary.steps else "the whole recording")


def _phase_rows(summary: Summary) -> list[dict[str, Any]]:
    return [
        {
            "phase": _path_text(summary, phase.path),
            "instances_per_step": phase.instances_per_step if phase.path or summary.steps else None,
            "kernels": phase.launches,
            "kernel_ms": phase.kernel_ms,
            "kernel_sd_ms": phase.kernel_sd_ms if len(summary.steps) > 1 else None,
            "busy_ms": phase.busy_ms,
            "span_ms": phase.span_ms,
            "host_ms": phase.host_ms if phase.path or summary.steps else None,
            "share_percent": None if phase.share is None else 100 * phase.share,
            "bound": bound(summary.lacks),
        }
        for phase in summary.phases
    ]


def _class_rows(summary: Summary) -> list[dict[str, Any]]:
    return [
        {
            "class": kind.name,
            "kernels": kind.kernels,
            "kernel_ms": kind.kernel_ms,
            "share_percent": 100 * kind.share,
            "bound": bound(summary.lacks, "gpu"),
        }
        for kind in summary.classes
    ]


def _gpu_rows(summary: Summary) -> list[dict[str, Any]]:
    names = ("gpu", "name", "busy_ms", "idle_ms", "longest_gap_ms", "warmup_left_out")
    lost = busy_and_idle(summary.lacks)
    return [{**dict(zip(names, astuple(gpu), strict=True)), "bound": lost} for gpu in summary.gpus]


def _metric_rows(summary: Summary) -> list[dict[str, Any]]:
    metrics = summary.gpu_metrics or {"ranges": [], "kernels": []}
    ranges = [{"of": "range", "name": _path_text(summary, row["path"]), **row} for row in metrics["ranges"]]
    return [*ranges, *({"of": "kernel", **row} for row in metrics["kernels"])]


def _traffic_rows(summary: Summary) -> list[dict[str, Any]]:
    if (memory := summary.unified_memory) is None:
        return []
    per = "step" if summary.steps else "recording"
    ranges = [{"phase": _path_text(summary, row["path"]), "per": per, **row} for row in memory["ranges"]]
    return [*ranges, {"phase": "the whole recording", "per": "recording", **memory["in_all"]}]


def _integrity_table(capture: Capture) -> pd.DataFrame:
    """What the recording lacks; with its columns also where that is nothing."""
    columns = ["axis", "place", "rule", "process", "missing", "of", "share_percent", "proven", "what"]
    rows = [
        (
            *(lack.axis, lack.place, lack.rule, _process_of(capture, lack.process), lack.n, lack.of),
            *(None if lack.share is None else 100 * lack.share, not lack.unknown, lack.text),
        )
        for lack in capture.lacks
    ]
    table: pd.DataFrame = pd.DataFrame(rows, columns=columns)
    return table


def _process_of(capture: Capture, index: int) -> str:
    return process_label(capture.processes[index], index) if 0 <= index < len(capture.processes) else "all"


def _kernel_table(capture: Capture) -> pd.DataFrame:
    """Every kernel of every process by name and class, costliest first. Launches of one name by different ops
    may be of different classes."""
    ops, bounds = capture.ops.where(capture.kernels), _bounds(capture)
    columns = {
        "process": ops.process,
        "name": ops.name_id,
        "class": row_classes(capture)[capture.kernels],
        "ns": ops.dur_ns,
    }
    keys = ["process", "name", "class"]
    groups = pd.DataFrame(columns).groupby(keys)["ns"].agg(["size", "sum"]).reset_index()
    names = [capture.name(index) or "(no name recorded)" for index in groups["name"]]
    processes, counts, dur_ms = groups["process"], groups["size"], groups["sum"] / 1e6
    table = pd.DataFrame(
        {
            "process": [_process_of(capture, index) for index in processes],
            "kernel": [short_name(name) for name in names],
            "class": [CLASSES[index] for index in groups["class"]],
            "launches": counts,
            "kernel_ms": dur_ms,
            "mean_us": 1000 * dur_ms / counts,
            "name": names,
            "bound": [bounds[index] for index in processes],
        }
    )
    process_ms = table.groupby("process")["kernel_ms"].transform("sum")
    table.insert(6, "share_percent", 100 * table["kernel_ms"] / process_ms.where(process_ms > 0))
    ordered: pd.DataFrame = table.sort_values(
        ["process", "kernel_ms"], ascending=[True, False], kind="stable"
    )
    return ordered


def _process_table(capture: Capture) -> pd.DataFrame:
    """A row per process: rows of each table, and when its GPU operations began and ended."""
    rows, bounds = [], _bounds(capture, *AXES)
    for index in range(len(capture.processes)):
        ops = capture.ops.where(capture.ops.process == index)
        row = {
            "process": _process_of(capture, index),
            "gpu_operations": len(ops),
            "api_calls": int((capture.api.process == index).sum()),
            "ranges": int((capture.ranges.process == index).sum()),
            "span_ms": (int(ops.end_ns.max()) - int(ops.start_ns.min())) / 1e6 if len(ops) else None,
            "bound": bounds[index],
        }
        rows.append(row)
    table: pd.DataFrame = pd.DataFrame(rows)
    return table


def _bounds(capture: Capture, *axes: Axis) -> dict[int, str]:
    """How to read counts and times of each process that rest on `axes` (the GPU's if none is named), by its
    index; of -1, those of no process."""
    return {
        index: bound([lack for lack in capture.lacks if lack.process in (-1, index)], *(axes or ("gpu",)))
        for index in range(-1, len(capture.processes))
    }


def bar_table(bars: Bars) -> pd.DataFrame:
    """One row per bar of the chart, with all that the chart knows of it."""
    families = np.array([name for name, _, _ in FAMILIES], dtype=object)
    texts = np.array([*bars.texts, ""], dtype=object)
    columns = {
        "row": np.array(bars.rows, dtype=object)[bars.row],
        "name": np.array(bars.names, dtype=object)[bars.name],
        "start_ms": bars.start_us / 1000,
        "dur_ms": bars.dur_us / 1000,
        "category": families[bars.family],
        **{name: texts[bars.labels[name]] for name in LABELS if name in bars.labels},
    }
    table: pd.DataFrame = pd.DataFrame(columns)
    return table
