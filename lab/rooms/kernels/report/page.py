"""The page of a profile, and of a replay or an energy run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pandas as pd

from lab.core.plan import Findings
from lab.recordings.gantt.bars import busy_table
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import counted, holes
from lab.report.page import write_page
from lab.report.parts import Page, Section, Status
from lab.report.tables import write_csv
from lab.rooms.kernels import analyze
from lab.rooms.kernels.catalogue.build import Catalogue
from lab.rooms.kernels.catalogue.gantt import bars_of, write_gantt
from lab.rooms.kernels.report.sections import (
    doubts_section,
    gantt_section,
    kernel_section,
    roof_section,
    time_section,
)
from lab.rooms.kernels.report.sentences import cards, terminal_text, verdict_sentences

QUESTION = (
    "Which kernels does the model launch, from which op with which arguments, and where do its time and "
    "energy go?"
)
FOOTNOTES = (
    "A launch is a kernel, copy or fill as the profiler recorded it; two are the same when kernel, grid, "
    "block, shared memory, registers, op, overload, arguments and phase are the same.",
    "Counts are of what ran, and per forward and rank, never per token requested.",
    "Time is kernel time. Kernels on several streams may overlap, so its sum can exceed the busy time, which "
    "is a union.",
    "A product's ceiling is the lower of two data-sheet figures: the arithmetic rate, and the memory rate "
    "times the product's intensity (each factor read once, the result written once). Caches can beat it for "
    "small factors.",
)


@dataclass(frozen=True)
class About:
    """What a page says of the run it shows."""

    title: str
    provenance: dict[str, dict[str, str]]
    kind: str = "measured"


def write_report(catalogue: Catalogue, about: About, out: Path, missing: Sequence[str]) -> Findings:
    """Write the summary tables, figures and report.html into `out`; findings with those files."""
    tables = _tables(catalogue)
    paths = [write_csv(table, out / "tables" / f"{name}.csv") for name, table in tables.items()]
    bars = bars_of(catalogue)
    busy = busy_table(bars, catalogue.lacks)
    chart = write_gantt(bars, out, bound=catalogue.signatures.bound)
    verdict = verdict_sentences(catalogue, tables, busy)
    status: Status = "warn" if catalogue.problems or missing or catalogue.signatures.device == "cpu" else "ok"
    sections = [
        time_section(tables, out),
        *roof_section(catalogue, tables["products"], out),
        gantt_section(bars),
        kernel_section(catalogue),
        doubts_section(catalogue, missing),
    ]
    page = Page(
        title=about.title,
        question=QUESTION,
        verdict=verdict,
        status=status,
        cards=cards(catalogue),
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
        "products": analyze.products(catalogue),
    }
    return {name: table.assign(**catalogue.marks) for name, table in tables.items()}


def write_result_page(findings: Findings, sections: list[Section], about: About, out: Path) -> Findings:
    """Write the page of a replay or an energy run; the findings with it."""
    page = Page(
        title=about.title,
        question=QUESTION,
        verdict=findings.verdict,
        status=findings.status,
        sections=sections,
        provenance=about.provenance,
        footnotes=FOOTNOTES[:2],
        room="kernels",
        kind=about.kind,
    )
    return msgspec.structs.replace(findings, files=[*findings.files, write_page(page, out / "report.html")])
