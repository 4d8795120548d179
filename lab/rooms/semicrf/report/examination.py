"""The page of a diagnosis: one cause with its evidence, the matrix, the probes and the reproducer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lab.core.run import Run
from lab.core.words import plural
from lab.report.parts import Card, Files, Page, Points, Section, Table
from lab.report.tables import write_csv
from lab.rooms.semicrf import verdict as verdicts
from lab.rooms.semicrf.analyze.examination import Examination
from lab.rooms.semicrf.matrix import classic_steps
from lab.rooms.semicrf.report.common import FOUND, PILLS, Findings, finish, short_numbers
from lab.rooms.semicrf.report.matrix import cell_frame, matrix_blocks

QUESTION = "Why does this semi-CRF give NaN, or drift: kernel, shared code, boundaries, objective or input?"
FOOTNOTES = (
    "A cell of the matrix is one short training; padding and free memory hold NaN.",
    "Probes of kernels run on one batch of the model's own scores, cut to a size that float64 from the "
    "definition can compute.",
    "A race that did not show in any run is not found. The linter shows that the objective is a probability, "
    "not that it is a good one.",
)


def examination(
    found: Examination, out: Path, title: str, where: dict[str, dict[str, str]], run: Run
) -> Findings:
    """Write the page and its tables."""
    config = run.manifest.config
    pair = (found.tested, found.reference)
    verdict = verdicts.diagnose(found.cells, found.probes, *pair)
    tables = {
        "matrix": cell_frame(found.cells),
        "probes": _probe_frame(found.probes),
        "guide_steps": pd.DataFrame(classic_steps(found.cells, *pair)),
    }
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in tables.items() if len(frame)]
    sentences = [*verdict.sentences, *_reproducer_sentences(found), _not_covered(found)]
    sentences += [] if found.cells and found.probes else [f"{reason}." for reason in found.missing]
    if config.get("plant"):
        sentences.append(f"This run had a fault planted in it: {config['plant']}.")
    page = Page(
        title=title,
        question=QUESTION,
        verdict=sentences,
        status="fail" if found.missing and not found.cells else verdict.status,
        cards=_cards(found, verdict),
        sections=_sections(found, verdict, tables, out),
        provenance=where,
        footnotes=FOOTNOTES,
        room="semicrf",
        kind=run.manifest.kind.value,
        badge=FOUND if verdict.status == "fail" else "",
    )
    probes = tables["probes"]
    dirty = probes.loc[probes["verdict"] == "dirty", ["probe", "backend", "text"]]
    return finish(page, out, files, dirty, found.missing, cause=verdict.cause)


def _sections(
    found: Examination, verdict: verdicts.Diagnosis, tables: dict[str, pd.DataFrame], out: Path
) -> list[Section]:
    """Evidence, matrix, the guide's steps, probes, guards and reproducer, as far as they are there."""
    sections = [Section("Evidence", [Points(verdict.evidence)])] if verdict.evidence else []
    if found.cells:
        blocks = matrix_blocks(found.cells, tables["matrix"], out / "figures", found.fixed_length)
        steps = Table(tables["guide_steps"], "Answered from the matrix", "tables/guide_steps.csv")
        sections += [Section("The matrix", blocks), Section("The guide's four steps", [steps])]
    if found.probes:
        rows = short_numbers(tables["probes"])
        table = Table(rows, "Each asks one question", "tables/probes.csv", pills=PILLS, open_rows=60)
        sections.append(Section("Probes", [table]))
    if found.reproducer:
        entries = [(f"{found.reproducer_folder}/{name}", "") for name in found.reproducer["files"]]
        sections.append(Section("Reproducer", [Files("Run it with python reproduce.py", entries)]))
    return sections


def _not_covered(found: Examination) -> str:
    """What ran, and the forms and functions that nothing here looked at."""
    ran = {row["backend"] for row in (*found.cells, *found.probes)} - {""}
    if not ran:
        return "Nothing was covered: no part of this run finished."
    left = [text for name, text in (("torch", "torch"), ("native", "the compiled form")) if name not in ran]
    if found.device == "cpu" and "native" in ran:
        left.append("the compiled form for GPUs")
    place = "CPU" if found.device == "cpu" else "GPU"
    return (
        f"Covered: {' and '.join(sorted(ran))} on this {place}, the loss and its gradient. "
        f"Not covered: {', '.join([*left, 'decoding', 'sampling', 'transitions by duration'])}; "
        "lab run semicrf check compares the decoding and the forms of its device with float64."
    )


def _reproducer_sentences(found: Examination) -> list[str]:
    if not found.reproducer:
        return []
    sequences = plural(found.reproducer["sequences"], "sequence")
    frames = plural(found.reproducer["frames"], "frame")
    return [f"The smallest case that still fails has {sequences} of {frames}: {found.reproducer['text']}."]


def _probe_frame(probes: Sequence[dict[str, Any]]) -> pd.DataFrame:
    columns = ["probe", "backend", "clean", "value", "limit", "cause", "text"]
    frame = pd.DataFrame(probes).reindex(columns=columns)
    verdicts = ["clean" if clean else "dirty" for clean in frame.pop("clean")]
    frame.insert(2, "verdict", verdicts)
    renamed: pd.DataFrame = frame.rename(columns={"cause": "speaks for"})
    return renamed


def _cards(found: Examination, verdict: verdicts.Diagnosis) -> list[Card]:
    failed = sum(cell["outcome"] == "failed" for cell in found.cells)
    dirty = sum(not row["clean"] for row in found.probes)
    cards = [Card("Cause", verdict.cause, "tables/probes.csv", note=verdicts.CAUSES[verdict.cause])]
    if found.cells:
        cards.append(Card("Trainings that failed", f"{failed} of {len(found.cells)}", "tables/matrix.csv"))
    if found.probes:
        cards.append(Card("Dirty probes", f"{dirty} of {len(found.probes)}", "tables/probes.csv"))
    return cards
