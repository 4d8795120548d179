"""The page of a profile, and of a replay or an energy run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lab.core.plan import Findings
from lab.perfmodel.boards import board_of
from lab.recordings.gantt.bars import busy_table
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import counted, holes
from lab.report.page import write_page
from lab.report.parts import Page, Status
from lab.report.tables import write_csv
from lab.rooms.kernels import analyze
from lab.rooms.kernels.catalogue.build import Catalogue
from lab.rooms.kernels.catalogue.gantt.bars import bars_of
from lab.rooms.kernels.catalogue.gantt.tables import write_gantt
from lab.rooms.kernels.catalogue.products import products
from lab.rooms.kernels.energy.result import EnergyResult
from lab.rooms.kernels.replay.proof.result import Result as ReplayResult
from lab.rooms.kernels.report.energy import energy_section
from lab.rooms.kernels.report.replay import replay_section
from lab.rooms.kernels.report.sections import (
    doubts_section,
    gantt_section,
    kernel_section,
    roof_section,
    shape_section,
    time_section,
)
from lab.rooms.kernels.report.sentences import cards, verdict_sentences
from lab.rooms.kernels.report.terminal import terminal_text
from lab.rooms.kernels.schema import LinearShape

QUESTION = (
    "Which kernels does the model launch, from which op with which arguments, and where do its time and "
    "energy go?"
)
FOOTNOTES = (
    "A launch is a kernel, copy or fill as the profiler recorded it; runtime calls are not launches. Two "
    "launches are the same when kernel, grid, block, shared memory, registers, op, overload, arguments and "
    "phase are the same.",
    "Counts are of what ran. Counts per forward are divided by the forwards in the trace and by the ranks, "
    "never by the number of tokens requested.",
    "The op that owns a launch is the innermost op around it. Its arguments come from the recorder if the "
    "same call was recorded, otherwise from the trace, which has no argument names (source `trace`).",
    "Time is kernel time. Kernels on several streams may overlap, so its sum can exceed the busy time, which "
    "is a union.",
    "A product's ceiling is the lower of two data-sheet figures: the arithmetic rate, and the memory rate "
    "times the product's intensity (each factor read once, the result written once). Caches can beat it for "
    "small factors.",
)


@dataclass(frozen=True)
class Extras:
    """What may lie beside the traces: the shape log, and results of replay and energy runs of the same
    recording.

    The homes are the folders of those runs as the page links them, "" or ending in a slash.
    """

    shapes: Sequence[LinearShape] = ()
    replay: ReplayResult | None = None
    replay_home: str = ""
    energy: EnergyResult | None = None
    energy_home: str = ""


@dataclass(frozen=True)
class About:
    """What a page says of the run it shows."""

    title: str
    provenance: dict[str, dict[str, str]]
    kind: str = "measured"


def write_report(
    catalogue: Catalogue, extras: Extras, about: About, out: Path, *, missing: Sequence[str] = ()
) -> Findings:
    """Write the summary tables, figures and report.html into `out`; findings with those files."""
    tables = _tables(catalogue)
    paths = [write_csv(table, out / "tables" / f"{name}.csv") for name, table in tables.items()]
    bars = bars_of(catalogue.ranks)
    busy = busy_table(bars, catalogue.lacks)
    chart = write_gantt(bars, out, bound=catalogue.signatures.bound)
    verdict = verdict_sentences(catalogue, tables, busy)
    status: Status = "warn" if catalogue.problems or missing or catalogue.signatures.device == "cpu" else "ok"
    sections = [
        time_section(tables, out),
        *roof_section(catalogue, tables["products"], out),
        gantt_section(bars),
        kernel_section(catalogue),
        *shape_section(extras.shapes, out),
        *replay_section(extras.replay, extras.replay_home),
        *energy_section(extras.energy, out, extras.energy_home),
        doubts_section(catalogue, missing),
    ]
    page = Page(
        title=about.title,
        question=QUESTION,
        verdict=verdict,
        status=status,
        cards=cards(catalogue, tables, busy),
        sections=sections,
        provenance=about.provenance,
        footnotes=FOOTNOTES,
        room="kernels",
        kind=about.kind,
    )
    page_path = write_page(page, out / "report.html")
    files = [*paths, *chart, *(out / png for png in page.pictures), page_path]
    lacking = [*missing, *sentences(holes(catalogue.lacks))]
    text = terminal_text(verdict, catalogue, page_path)
    return Findings(verdict, status, files, text, lacking, sentences(counted(catalogue.lacks)))


def _tables(catalogue: Catalogue) -> dict[str, pd.DataFrame]:
    signatures, frame = catalogue.signatures, analyze.frame_of(catalogue)
    tables = {
        "by_phase": analyze.phases(frame, signatures.forwards, len(signatures.ranks)),
        "by_class": analyze.shares(frame, "class"),
        "by_op": analyze.shares(frame, "op"),
        "by_module": analyze.shares(frame, "module"),
        "products": products(catalogue, board_of(signatures.gpu, signatures.num_sms)),
        "argument_sources": analyze.sources(catalogue),
    }
    return {name: table.assign(**catalogue.marks) for name, table in tables.items()}


def write_result_page(
    findings: Findings, result: ReplayResult | EnergyResult, about: About, out: Path
) -> Path:
    """A page of its own for a replay or an energy run."""
    sections = replay_section(result) if isinstance(result, ReplayResult) else energy_section(result, out)
    page = Page(
        title=about.title,
        question=QUESTION,
        verdict=findings.verdict,
        status=findings.status,
        sections=sections,
        provenance=about.provenance,
        footnotes=FOOTNOTES[:2],
        room="kernels",
    )
    return write_page(page, out / "report.html")
