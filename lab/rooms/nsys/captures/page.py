"""The page and tables of one recording, whatever tool made it: phases, classes, kernels, Gantt, integrity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.core.words import plural
from lab.recordings.capture import Capture
from lab.recordings.gantt.bars import FAMILIES, LABELS, Bars, busy_table
from lab.recordings.gantt.capture import bars_of_capture
from lab.recordings.gantt.packed import packed
from lab.recordings.integrity.words import bound, busy_and_idle, marked, sentences
from lab.recordings.lacks import AXES, Axis, verdict_of
from lab.recordings.names import kernel_class, short_name
from lab.recordings.parts import with_origins
from lab.recordings.processes import process_label
from lab.recordings.projection import project
from lab.report.page import write_page
from lab.report.parts import Block, Card, Page, Points, Prose, Section, Status, Table, Timeline
from lab.report.provenance import provenance
from lab.report.tables import write_csv
from lab.report.terminal import number
from lab.rooms.nsys.captures.summary import TOP, Summary, unknowns
from lab.rooms.nsys.captures.summary_text import TOOLS

CAPTION = (
    "Every GPU operation by process, device and stream. Grey bands are steps; red shade is compute beside "
    "communication or copies; the darker a pixel, the busier it is. Scroll to zoom, drag to move, click for "
    "what is known of an operation. Keys: arrows, + and -, 0, n and p for the next and previous that fits."
)


@dataclass(frozen=True)
class Written:
    """What was written of one recording; `unknown` are the sentences about what cannot be known."""

    files: list[Path]
    verdict: list[str]
    status: Status
    unknown: list[str] = field(default_factory=list)


def write_recording(capture: Capture, per_process: Sequence[Summary], out: Path) -> Written:
    """report.html and tables/*.csv of one recording in `out`. Raises StorageError where it cannot write."""
    bars = bars_of_capture(project(capture, origins=with_origins(capture)[1])) if len(capture.ops) else None
    tables = _tables(capture, per_process)
    if bars is not None:
        gantt = _bar_table(bars).assign(bound=bound(capture.lacks, "gpu"))
        tables |= {"gantt": gantt, "busy": busy_table(bars, capture.lacks)}
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in tables.items()]
    unknown = unknowns(capture)
    verdict = _sentences(capture, len(per_process), unknown)
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
        sections=_sections(capture, per_process, tables, bars),
        provenance=provenance(capture.source, None) | {"Recorder": recorder},
        footnotes=[*offers, *capture.problems[:20]],
        room="recording",
    )
    return Written([write_page(page, out / "report.html"), *files], verdict, status, unknown)


def _tool(capture: Capture) -> str:
    """The tool; of a Perfetto file the program that wrote it."""
    tool = TOOLS.get(capture.collector, capture.collector)
    return f"{capture.info['writer']} (Perfetto file)" if "writer" in capture.info else tool


def _sentences(capture: Capture, num_processes: int, unknown: Sequence[str]) -> list[str]:
    kernels = capture.ops.where(capture.kernels)
    subject = (
        f"{marked(bound(capture.lacks, 'gpu'))}{plural(len(kernels), 'kernel')}, "
        f"{int((kernels.end_ns - kernels.start_ns).sum()) / 1e6:,.3f} ms of kernel time, "
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


def _tables(capture: Capture, per_process: Sequence[Summary]) -> dict[str, pd.DataFrame]:
    """Tables by the name of their CSV; every row names its process."""
    tables = {}
    makers = {
        "phases": _phase_rows,
        "classes": _class_rows,
        "gpus": _gpu_rows,
        "gpu_metrics": _metric_rows,
        "unified_memory": _traffic_rows,
    }
    for name, rows_of in makers.items():
        rows = [{"process": one.label, **row} for one in per_process for row in rows_of(one)]
        if rows:
            tables[name] = pd.DataFrame(rows)
    if len(capture.counters):
        tables["counters"] = _counter_table(capture)
    return tables | {
        "kernels": _kernel_table(capture),
        "integrity": _integrity_table(capture),
        "processes": _process_table(capture),
    }


def _path_text(summary: Summary, path: Sequence[str]) -> str:
    return "/".join(path) or ("step" if summary.steps else "the whole recording")


def _phase_rows(summary: Summary) -> list[dict[str, Any]]:
    rows = []
    for phase in summary.phases:
        is_range = bool(phase.path or summary.steps)
        row = {
            "phase": _path_text(summary, phase.path),
            "instances_per_step": phase.instances_per_step if is_range else None,
            "kernels": "-".join(map(str, sorted({min(phase.kernels), max(phase.kernels)}))),
            "kernel_ms": phase.kernel_ms,
            "kernel_sd_ms": phase.kernel_sd_ms if len(summary.steps) > 1 else None,
            "busy_ms": phase.busy_ms,
            "span_ms": phase.span_ms,
            "host_ms": phase.host_ms if is_range else None,
            "share_percent": None if phase.share is None else 100 * phase.share,
            "bound": bound(summary.lacks),
        }
        rows.append(row)
    return rows


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
    return [
        {
            "gpu": gpu.device,
            "name": gpu.name,
            "busy_ms": gpu.busy_ms,
            "idle_ms": gpu.idle_ms,
            "longest_gap_ms": gpu.longest_gap_ms,
            "bound": busy_and_idle(summary.lacks),
        }
        for gpu in summary.gpus
    ]


def _metric_rows(summary: Summary) -> list[dict[str, Any]]:
    metrics = summary.gpu_metrics or {"ranges": [], "kernels": []}
    rows = [
        *({"of": "range", "name": _path_text(summary, row["path"]), **row} for row in metrics["ranges"]),
        *({"of": "kernel", **row} for row in metrics["kernels"]),
    ]
    return [{name: value for name, value in row.items() if name != "path"} for row in rows]


def _traffic_rows(summary: Summary) -> list[dict[str, Any]]:
    memory = summary.unified_memory
    if memory is None:
        return []
    rows = [
        {"phase": _path_text(summary, row["path"]), "per": "step" if summary.steps else "recording", **row}
        for row in memory["ranges"]
    ]
    rows.append({"phase": "the whole recording", "per": "recording", **memory["in_all"]})
    return [{name: value for name, value in row.items() if name != "path"} for row in rows]


def _integrity_table(capture: Capture) -> pd.DataFrame:
    """What the recording lacks; with its columns also where that is nothing."""
    rows = [
        (
            *(lack.axis, lack.place, lack.rule, _process_of(capture, lack.process), lack.n, lack.of),
            None if lack.share is None else 100 * lack.share,
            *(not lack.unknown, lack.text),
        )
        for lack in capture.lacks
    ]
    columns = ["axis", "place", "rule", "process", "missing", "of", "share_percent", "proven", "what"]
    table: pd.DataFrame = pd.DataFrame(rows, columns=columns)
    return table


def _process_of(capture: Capture, index: int) -> str:
    return process_label(capture.processes[index], index) if 0 <= index < len(capture.processes) else "all"


def _kernel_table(capture: Capture) -> pd.DataFrame:
    """Every kernel of every process by name, costliest first: count, ms, mean, share of its process."""
    ops, bounds = capture.ops.where(capture.kernels), _bounds(capture)
    keys = np.stack([ops.process, ops.name_id], axis=1).astype(np.int64)
    used, group = np.unique(keys, axis=0, return_inverse=True)
    dur_ms = np.bincount(group.ravel(), ops.end_ns - ops.start_ns, minlength=len(used)) / 1e6
    counts = np.bincount(group.ravel(), minlength=len(used))
    names = [capture.name(int(name)) or "(no name recorded)" for name in used[:, 1]]
    processes = used[:, 0].tolist()
    table = pd.DataFrame(
        {
            "process": [_process_of(capture, index) for index in processes],
            "kernel": [short_name(name) for name in names],
            "class": [kernel_class(name) for name in names],
            "launches": counts,
            "kernel_ms": dur_ms,
            "mean_us": 1000 * dur_ms / np.maximum(counts, 1),
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


def _counter_table(capture: Capture) -> pd.DataFrame:
    """A row per process, kernel and counter: over the dispatches that measured it, by kernel time."""
    rows, bounds = capture.counters, _bounds(capture)
    ops = capture.ops.where(capture.kernels)
    used, group = np.unique(ops.name_id, return_inverse=True)
    dur_ns = np.bincount(group.ravel(), ops.end_ns - ops.start_ns, minlength=len(used))
    time_ns = dict(zip(used.tolist(), dur_ns.tolist(), strict=True))
    names, processes = capture.text(rows.name_id), rows.process.tolist()
    table = pd.DataFrame(
        {
            "process": [_process_of(capture, index) for index in processes],
            "kernel": [short_name(name) for name in names],
            "counter": capture.text(rows.counter_id),
            "unit": capture.text(rows.unit_id),
            "dispatches": rows.measured,
            "mean": rows.sum / np.maximum(rows.measured, 1),
            "min": rows.min,
            "max": rows.max,
            "sum": rows.sum,
            "name": names,
            "bound": [bounds[index] for index in processes],
            "_time": [time_ns.get(name, 0) for name in rows.name_id.tolist()],
        }
    )
    by, ascending = ["process", "_time", "name", "counter"], [True, False, True, True]
    ordered: pd.DataFrame = table.sort_values(by, ascending=ascending, kind="stable").drop(columns="_time")
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


def _bar_table(bars: Bars) -> pd.DataFrame:
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


def _sections(
    capture: Capture, per_process: Sequence[Summary], tables: dict[str, pd.DataFrame], bars: Bars | None
) -> list[Section]:
    several = len(capture.processes) > 1
    has_steps = any(summary.steps for summary in per_process)
    over = "all measured steps together" if has_steps else "the whole recording"
    phases = "Means over the measured steps; warm-up and what lies outside of steps are left out"
    if not has_steps:
        num_left_out = sum(summary.warmup_left_out for summary in per_process)
        warmup = (
            f"without {plural(num_left_out, 'operation')} of warm-up"
            if num_left_out
            else "with any warm-up in it"
        )
        phases = f"No range is a step: the whole recording, {warmup}"
    kernels = f"The {TOP} costliest kernels by name, over the whole recording; the CSV has all"
    shown = {
        name: frame
        if several or name in ("busy", "integrity")
        else frame.drop(columns="process", errors="ignore")
        for name, frame in tables.items()
    }
    metrics = "Mean percent of the peak of the samples inside the GPU work of a range or kernel"
    counters = "Hardware counters by kernel; a dispatch's value is the sum over instances of the block"
    blocks: dict[str, list[Block]] = {
        "Integrity": _integrity_blocks(capture, tables["integrity"]),
        "Phases": _table_of(shown, "phases", phases),
        "Kernel classes": _table_of(shown, "classes", f"Kernel time by class, over {over}"),
        "Costliest kernels": _table_of(shown, "kernels", kernels, top=TOP, open_rows=60),
        "GPU metrics": _table_of(shown, "gpu_metrics", metrics),
        "Unified memory": _table_of(shown, "unified_memory", "MB that migrated, and page faults"),
        "Counters": _table_of(shown, "counters", counters, open_rows=40),
    }
    if bars is not None:
        chart = Timeline("gantt", packed(bars), CAPTION, "tables/gantt.csv")
        blocks["Gantt"] = [chart, *_table_of(shown, "busy", "Times of each device")]
    if several:
        blocks["Processes"] = _table_of(shown, "processes", "One row per process")
    return [Section(title, parts) for title, parts in blocks.items() if parts]


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
    if name in ("kernels", "counters"):
        frame = frame.drop(columns="name")
    return [Table(frame, caption, f"tables/{name}.csv", open_rows=open_rows, limit=300)]
