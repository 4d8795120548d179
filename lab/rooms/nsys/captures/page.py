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
from lab.rooms.nsys.captures.summary import TOP, Summary
from lab.rooms.nsys.captures.summary_text import TOOLS

CAPTION = (
    "Every GPU operation by process, device and stream. Grey bands are steps; red shade is compute beside "
    "communication or copies; the darker a pixel, the busier it is. Scroll to zoom, drag to move, click for "
    "what is known of an operation. Keys: arrows, + and -, 0, n and p for the next and previous that fits."
)
NO_KERNELS = "no kernels were recorded: kernel times, shares and idle time cannot be known"


@dataclass(frozen=True)
class Written:
    """What was written of one recording; `unknown` are the sentences about what cannot be known."""

    files: list[Path]
    verdict: list[str]
    status: Status
    unknown: list[str] = field(default_factory=list)


def write_recording(capture: Capture, found: Sequence[Summary], out: Path) -> Written:
    """report.html and tables/*.csv of one recording in `out`. Raises StorageError where it cannot write."""
    bars = bars_of_capture(project(capture, origins=with_origins(capture)[1])) if len(capture.ops) else None
    tables = _tables(capture, found)
    if bars is not None:
        gantt = bar_table(bars).assign(bound=bound(capture.lacks, "gpu"))
        tables |= {"gantt": gantt, "busy": busy_table(bars, capture.lacks)}
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in tables.items()]
    unknown = unknowns(capture)
    verdict = _sentences(capture, found, unknown)
    status: Status = "ok" if verdict_of(capture.lacks) == "complete" and not unknown else "warn"
    page = Page(
        title=capture.source.name,
        question="What ran on the GPU, for how long, and is the recording complete?",
        verdict=verdict,
        status=status,
        cards=_cards(capture, found),
        sections=_sections(capture, found, tables, bars),
        provenance=provenance(capture.source, None) | {"Recorder": _recorder(capture)},
        footnotes=[*(offer.sentence for one in found for offer in one.offers[:8]), *capture.problems[:20]],
        room="recording",
    )
    return Written([write_page(page, out / "report.html"), *files], verdict, status, unknown)


def unknowns(capture: Capture) -> list[str]:
    """Sentences about the tables that are not there, and what therefore nobody can say."""
    found = []
    if not capture.kernels.any():
        found.append(NO_KERNELS)
    if not len(capture.ranges):
        found.append("no ranges and no operators were recorded: phases cannot be known")
    if not len(capture.api):
        found.append("no API calls were recorded: who launched what cannot be known")
    if len(capture.ops) and not (capture.ops.name_id >= 0).any():
        found.append("no names were recorded (no StringIds): classes and kernels cannot be told apart")
    return found


def _sentences(capture: Capture, found: Sequence[Summary], unknown: Sequence[str]) -> list[str]:
    kernels = int(capture.kernels.sum())
    dur_ns = (capture.ops.end_ns - capture.ops.start_ns)[capture.kernels]
    processes = plural(max(len(found), 1), "process")
    first = (
        f"{marked(bound(capture.lacks, 'gpu'))}{plural(kernels, 'kernel')}, "
        f"{int(dur_ns.sum()) / 1e6:,.3f} ms of kernel time, of {processes}, "
        f"recorded by {_tool(capture)}."
    )
    axes = ", ".join(f"{axis} {verdict_of(capture.lacks, axis)}" for axis in AXES)
    recording = f"The recording is {verdict_of(capture.lacks)} ({axes})."
    untraced = [f"{lack.text[0].upper()}{lack.text[1:]}." for lack in capture.lacks if lack.untraced]
    return [first, recording, *untraced, *(f"{one[0].upper()}{one[1:]}." for one in unknown)]


def _cards(capture: Capture, found: Sequence[Summary]) -> list[Card]:
    cards = [Card("recording", verdict_of(capture.lacks), "tables/integrity.csv")]
    for one in found[:4]:
        if one.phases and one.phases[0].kernels != (0,):
            whole, where = one.phases[0], f" of {one.label}" if len(found) > 1 else ""
            at_least = marked(bound(one.lacks, "gpu"))
            steps = (
                f"{at_least}mean of {plural(len(one.steps), 'step')}" if one.steps else f"{at_least}in all"
            )
            label = f"kernel time{where}"
            cards.append(Card(label, number(whole.kernel_ms, 3), "tables/phases.csv", "ms", steps))
    return cards


def _tables(capture: Capture, found: Sequence[Summary]) -> dict[str, pd.DataFrame]:
    """Tables by the name of their CSV; every row names its process."""
    made = {
        "phases": [row for one in found for row in _phase_rows(one)],
        "classes": [row for one in found for row in _class_rows(one)],
        "gpus": [row for one in found for row in _gpu_rows(one)],
    }
    tables = {name: pd.DataFrame(rows) for name, rows in made.items() if rows}
    if len(capture.counters):
        tables["counters"] = _counter_table(capture)
    return tables | {
        "kernels": _kernel_table(capture),
        "integrity": _integrity_table(capture),
        "processes": _process_table(capture),
    }


def _phase_rows(one: Summary) -> list[dict[str, Any]]:
    return [
        {
            "process": one.label,
            "phase": "/".join(phase.path) or ("step" if one.steps else "the whole recording"),
            "instances_per_step": phase.instances_per_step if phase.path or one.steps else None,
            "kernels": "-".join(map(str, sorted({min(phase.kernels), max(phase.kernels)}))),
            "kernel_ms": phase.kernel_ms,
            "kernel_sd_ms": phase.kernel_sd_ms if len(one.steps) > 1 else None,
            "busy_ms": phase.busy_ms,
            "span_ms": phase.span_ms,
            "host_ms": phase.host_ms if phase.path or one.steps else None,
            "share_percent": None if phase.share is None else 100 * phase.share,
            "bound": bound(one.lacks),
        }
        for phase in one.phases
    ]


def _class_rows(one: Summary) -> list[dict[str, Any]]:
    return [
        {
            "process": one.label,
            "class": kind.name,
            "kernels": kind.kernels,
            "kernel_ms": kind.kernel_ms,
            "share_percent": 100 * kind.share,
            "bound": bound(one.lacks, "gpu"),
        }
        for kind in one.classes
    ]


def _gpu_rows(one: Summary) -> list[dict[str, Any]]:
    return [
        {
            "process": one.label,
            "gpu": gpu.device,
            "name": gpu.name,
            "busy_ms": gpu.busy_ms,
            "idle_ms": gpu.idle_ms,
            "longest_gap_ms": gpu.longest_gap_ms,
            "bound": busy_and_idle(one.lacks),
        }
        for gpu in one.gpus
    ]


def _integrity_table(capture: Capture) -> pd.DataFrame:
    """What the recording lacks; with its columns also where that is nothing."""
    rows = [
        {
            "axis": lack.axis,
            "place": lack.place,
            "rule": lack.rule,
            "process": _process_of(capture, lack.process),
            "missing": lack.n,
            "of": lack.of,
            "share_percent": None if lack.share is None else 100 * lack.share,
            "proven": not lack.unknown,
            "what": lack.text,
        }
        for lack in capture.lacks
    ]
    columns = ["axis", "place", "rule", "process", "missing", "of", "share_percent", "proven", "what"]
    found: pd.DataFrame = pd.DataFrame(rows, columns=columns)
    return found


def _process_of(capture: Capture, index: int) -> str:
    return process_label(capture.processes[index], index) if 0 <= index < len(capture.processes) else "all"


def _kernel_table(capture: Capture) -> pd.DataFrame:
    """Every kernel of every process by name, costliest first: count, ms, mean, share of its process."""
    ops = capture.ops.where(capture.kernels)
    keys = np.stack([ops.process, ops.name_id], axis=1).astype(np.int64)
    used, which = np.unique(keys, axis=0, return_inverse=True)
    dur_ms = np.bincount(which.ravel(), ops.end_ns - ops.start_ns, minlength=len(used)) / 1e6
    counts = np.bincount(which.ravel(), minlength=len(used))
    names = [capture.name(int(one)) or "(no name recorded)" for one in used[:, 1]]
    table = pd.DataFrame(
        {
            "process": [_process_of(capture, int(one)) for one in used[:, 0]],
            "kernel": [short_name(name) for name in names],
            "class": [kernel_class(name) for name in names],
            "launches": counts,
            "kernel_ms": dur_ms,
            "mean_us": 1000 * dur_ms / np.maximum(counts, 1),
            "name": names,
        }
    )
    bounds = _bounds(capture)
    table["bound"] = [bounds[int(one)] for one in used[:, 0]]
    whole = table.groupby("process")["kernel_ms"].transform("sum")
    table.insert(6, "share_percent", 100 * table["kernel_ms"] / whole.where(whole > 0))
    ordered: pd.DataFrame = table.sort_values(
        ["process", "kernel_ms"], ascending=[True, False], kind="stable"
    )
    return ordered


def _counter_table(capture: Capture) -> pd.DataFrame:
    """A row per process, kernel and counter: over the dispatches that measured it, by kernel time."""
    rows, bounds = capture.counters, _bounds(capture)
    measured = np.maximum(rows.measured, 1)
    ops = capture.ops.where(capture.kernels)
    used, which = np.unique(ops.name_id, return_inverse=True)
    dur_ns = np.bincount(which.ravel(), ops.end_ns - ops.start_ns, minlength=len(used))
    time_ns = dict(zip(used.tolist(), dur_ns.tolist(), strict=True))
    names = capture.text(rows.name_id)
    table = pd.DataFrame(
        {
            "process": [_process_of(capture, int(one)) for one in rows.process],
            "kernel": [short_name(name) for name in names],
            "counter": capture.text(rows.counter_id),
            "unit": capture.text(rows.unit_id),
            "dispatches": rows.measured,
            "mean": rows.sum / measured,
            "min": rows.min,
            "max": rows.max,
            "sum": rows.sum,
            "name": names,
            "bound": [bounds[int(one)] for one in rows.process],
            "_time": [time_ns.get(int(one), 0) for one in rows.name_id],
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
        rows.append(
            {
                "process": _process_of(capture, index),
                "gpu_operations": len(ops),
                "api_calls": int((capture.api.process == index).sum()),
                "ranges": int((capture.ranges.process == index).sum()),
                "span_ms": (int(ops.end_ns.max()) - int(ops.start_ns.min())) / 1e6 if len(ops) else None,
                "bound": bounds[index],
            }
        )
    table: pd.DataFrame = pd.DataFrame(rows)
    return table


def _bounds(capture: Capture, *axes: Axis) -> dict[int, str]:
    """How to read counts and times of each process that rest on `axes` (the GPU's if none is named), by its
    index; of -1, those of no process."""
    found = {}
    for index in (*range(len(capture.processes)), -1):
        mine = [one for one in capture.lacks if one.process in (-1, index)]
        found[index] = bound(mine, *(axes or ("gpu",)))
    return found


def bar_table(bars: Bars) -> pd.DataFrame:
    """One row per bar of the chart, with all that the chart knows of it."""
    names = np.array(bars.names, dtype=object)
    families = np.array([name for name, _, _ in FAMILIES], dtype=object)
    texts = np.array([*bars.texts, ""], dtype=object)
    columns = {
        "row": np.array(bars.rows, dtype=object)[bars.row],
        "name": names[bars.name],
        "start_ms": bars.start_us / 1000,
        "dur_ms": bars.dur_us / 1000,
        "category": families[bars.family],
        **{name: texts[bars.labels[name]] for name in LABELS if name in bars.labels},
    }
    table: pd.DataFrame = pd.DataFrame(columns)
    return table


def _sections(
    capture: Capture, found: Sequence[Summary], tables: dict[str, pd.DataFrame], bars: Bars | None
) -> list[Section]:
    def table(name: str, caption: str, frame: pd.DataFrame | None = None) -> Table:
        return Table(tables[name] if frame is None else frame, caption, f"tables/{name}.csv")

    def few(name: str) -> pd.DataFrame:
        frame = tables[name]
        return frame if len(capture.processes) > 1 else frame.drop(columns="process", errors="ignore")

    integrity: list[Block] = [Points(sentences(capture.lacks, processes=len(capture.processes)))]
    if not capture.lacks:
        integrity = [
            Prose("Every launch has its rows, and every row its launch: nothing is known to be missing.")
        ]
    else:
        integrity.append(table("integrity", "What the recording lacks, by rule"))
    sections = [Section("Integrity", integrity)]
    if "phases" in tables:
        words = "Means over the measured steps; warm-up and what lies outside of steps are left out"
        if not any(one.steps for one in found):
            left = sum(one.warmup_left_out for one in found)
            warmup = f"without {plural(left, 'operation')} of warm-up" if left else "with any warm-up in it"
            words = f"No range is a step: the whole recording, {warmup}"
        sections.append(Section("Phases", [table("phases", words, few("phases"))]))
    if "classes" in tables:
        steps = {len(one.steps) for one in found}
        over = "all measured steps together" if max(steps, default=0) else "the whole recording"
        caption = f"Kernel time by class, over {over}"
        sections.append(Section("Kernel classes", [table("classes", caption, few("classes"))]))
    if capture.kernels.any():
        most = tables["kernels"].groupby("process", sort=False).head(TOP)
        most = most.drop(columns=["name"] if len(capture.processes) > 1 else ["name", "process"])
        caption = f"The {TOP} costliest kernels by name, over the whole recording; the CSV has all"
        sections.append(
            Section("Costliest kernels", [Table(most, caption, "tables/kernels.csv", open_rows=60)])
        )
    if "counters" in tables:
        caption = "Hardware counters by kernel; a dispatch's value is the sum over instances of the block"
        shown = few("counters").drop(columns="name")
        sections.append(
            Section("Counters", [Table(shown, caption, "tables/counters.csv", limit=300, open_rows=40)])
        )
    if bars is not None:
        chart = Timeline("gantt", packed(bars), CAPTION, "tables/gantt.csv")
        sections.append(Section("Gantt", [chart, table("busy", "Times of each device")]))
    if len(capture.processes) > 1:
        sections.append(Section("Processes", [table("processes", "One row per process")]))
    return sections


def _tool(capture: Capture) -> str:
    """The tool; of a Perfetto file the program that wrote it."""
    tool = TOOLS.get(capture.collector, capture.collector)
    return f"{capture.info['writer']} (Perfetto file)" if "writer" in capture.info else tool


def _recorder(capture: Capture) -> dict[str, str]:
    known = {
        "tool": _tool(capture),
        "version": capture.version or "unknown",
        "schema": capture.schema or "none",
        **capture.info,
    }
    return {name: str(value) for name, value in known.items()}
