"""The page and tables of one recording, whatever tool made it: phases, classes, kernels, Gantt, integrity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lab.core.plan import Findings
from lab.core.words import plural, printable
from lab.recordings.capture import Capture
from lab.recordings.gantt import bars_of_capture
from lab.recordings.gantt.bars import Bars, busy_table, packed
from lab.recordings.integrity.words import bound, marked, sentences
from lab.recordings.lacks import AXES, counted, holes, verdict_of
from lab.recordings.projection import project, with_origins
from lab.recordings.tables import Table as Columns
from lab.recordings.views import drawing_of, op_roofs, summary_of
from lab.report.figures import roofline, save
from lab.report.page import write_page
from lab.report.parts import Block, Card, Figure, Page, Points, Prose, Section, Status, Table, Timeline
from lab.report.provenance import provenance
from lab.report.tables import write_csv
from lab.report.terminal import Heading, number
from lab.rooms.nsys.captures.hardware import TRAFFIC
from lab.rooms.nsys.captures.summary import NO_KERNELS, TOP, Summary, unknowns
from lab.rooms.nsys.captures.summary_text import TOOLS, summaries_text
from lab.rooms.nsys.captures.tables import bar_table, recording_tables

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
