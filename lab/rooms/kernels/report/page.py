"""The page of a profile, and of a replay or an energy run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from lab.core.plan import Findings
from lab.core.words import plural
from lab.recordings.gantt.bars import busy_table
from lab.recordings.integrity.words import bound, integrity_lines, marked, sentences
from lab.recordings.lacks import counted, holes
from lab.report.page import write_page
from lab.report.parts import Card, Page, Section, Status
from lab.report.tables import terminal_table, write_csv
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


# The verdict of a profile in sentences, and the cards above them.


def verdict_sentences(catalogue: Catalogue, tables: dict[str, pd.DataFrame], busy: pd.DataFrame) -> list[str]:
    """How much was launched, where the time goes, how busy each GPU is."""
    sentences = [_count_sentence(catalogue)]
    if catalogue.lacks:
        sentences += integrity_lines(catalogue.lacks)
    if catalogue.signatures.device == "cpu":
        sentences.append(
            "This trace is without kernels: ops stand in for launches, and their times are CPU times."
        )
    top = tables["by_class"].iloc[0]
    sentences.append(
        f"Most time goes to {top['class']}: {top['share_percent']:.0f} % in "
        f"{plural(int(top['launches']), 'launch')}."
    )
    sentences += _waits(catalogue)
    sentences += [_phase_sentence(row) for row in tables["by_phase"].to_dict("records") if row["forwards"]]
    if catalogue.signatures.device == "gpu":
        sentences += [
            _busy_sentence(row, marked(bound(catalogue.lacks, "gpu")))
            for row in busy.to_dict("records")
            if row["span_ms"] > 0
        ]
    return sentences


def _count_sentence(catalogue: Catalogue) -> str:
    signatures = catalogue.signatures
    total_ms = sum(launch.own_us for launch in catalogue.launches) / 1000
    noun = ("launch", "launches") if signatures.device == "gpu" else ("CPU op with work", "CPU ops with work")
    forwards = ", ".join(f"{count} {phase}" for phase, count in signatures.forwards.items())
    ranks = f" over {len(signatures.ranks)} ranks" if len(signatures.ranks) > 1 else ""
    at_least = marked(bound(catalogue.lacks, "gpu")).capitalize()
    count = plural(len(catalogue.launches), *noun)
    return (
        f"{at_least}{count}, {len(signatures.signatures):,} distinct, "
        f"{total_ms:.2f} ms of their own time{f' in {forwards}' if forwards else ''}{ranks}."
    )


def _waits(catalogue: Catalogue) -> list[str]:
    """How long collectives only waited, which is neither communication nor an op's cost."""
    wait_ms = sum(launch.wait_us for launch in catalogue.launches) / 1000
    if not wait_ms:
        return []
    return [
        f"Beside that, collectives wait {wait_ms:.2f} ms for ranks that come later, which counts for no "
        "class, op or module (`lab ranks` says for whom and why they wait)."
    ]


def _phase_sentence(row: dict[Any, Any]) -> str:
    return (
        f"A {row['phase']} forward: {row['launches_per_forward']:.0f} launches, "
        f"{row['kernel_ms_per_forward']:.3f} ms of their own time."
    )


def _busy_sentence(row: dict[Any, Any], at_least: str) -> str:
    overlap = f"{row['overlap_ms']:.2f} ms of compute runs beside communication or copies"
    share = 100 * row["busy_ms"] / row["span_ms"]
    return (
        f"GPU {row['device']} of rank {row['rank']} is busy {at_least}{share:.0f} % of "
        f"{row['span_ms']:.1f} ms under the profiler{f'; {overlap}' if row['overlap_ms'] > 0 else ''}."
    )


def cards(catalogue: Catalogue) -> list[Card]:
    signatures = catalogue.signatures
    total_ms = sum(launch.dur_us for launch in catalogue.launches) / 1000
    ranks = plural(len(signatures.ranks), "rank")
    at_least = f", {bound(catalogue.lacks, 'gpu')}".rstrip(", ")
    return [
        Card(f"launches{at_least}", f"{len(catalogue.launches)}", "tables/launches.jsonl", note=ranks),
        Card("distinct launches", f"{len(signatures.signatures)}", "tables/unique_kernels.csv"),
        Card(f"time of launches{at_least}", f"{total_ms:.2f}", "tables/by_class.csv", unit="ms"),
    ]


COLUMNS = ["kernel", "class", "op", "phase", "count", "dur_sum_us", "dur_median_us", "time_share"]


def terminal_text(verdict: Sequence[str], catalogue: Catalogue, page: Path) -> str:
    """The verdict, the problems, the launches that take most time, and where the page is."""
    lines = [
        verdict[0],
        *(f"- {sentence}" for sentence in verdict[1:]),
        *(f"! {text}" for text in catalogue.problems),
        "",
        terminal_table(analyze.shortened(catalogue.unique[COLUMNS].head(12)), width=118),
        "",
        f"report: {page}",
    ]
    return "\n".join(lines)
