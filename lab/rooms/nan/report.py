"""The nan room's tables -> CSV files, figures and one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.core.plan import Findings
from lab.report.page import write_page
from lab.report.parts import Card, Page, Points, Section, Status
from lab.report.tables import terminal_table, write_csv
from lab.rooms.nan.analyze import NanTables
from lab.rooms.nan.columns import TERMINAL
from lab.rooms.nan.grids import chain_blocks, layer_blocks
from lab.rooms.nan.nixnan import page as sass_page
from lab.rooms.nan.nixnan.tables import SassTables
from lab.rooms.nan.page_tables import (
    applied_blocks,
    birth_blocks,
    function_blocks,
    instruction_blocks,
    ranking_blocks,
)
from lab.rooms.nan.sentences import sentences
from lab.rooms.nan.verdict import SEVERITY

QUESTION = "Where is the first NaN or infinity born, how far does it get, and which change keeps it away?"
TABLES = ("experiments", "chain", "applied", "births", "layers", "functions")
FOOTNOTES = (
    "A rank is a rank of verdicts, never of counts. Verdicts from good to bad: clean, subnormal-only and "
    "masked-intermediate (one grade: nothing left a kernel), stored, reached-module, reached-logits. An "
    "experiment that failed, was skipped or changed nothing has no rank.",
    "Counts at the Python level are over distinct output tensors: a NaN that passes through three modules in "
    "one tensor counts once. A leaf is one tensor going into or out of one call; a bad leaf holds a NaN or "
    "an infinity. Masks and caches are not counted as leaves.",
    "The first producer is the first bad leaf in the order of time. If that leaf is a child's input and no "
    "module put it out, the parent's own code made it: in the parent, after one child, before the next.",
    "A line of nixnan is one distinct (instruction, mask of kinds, operand), not an occurrence; a site is "
    "(function, SASS, operand). Unique and repeats are from the tool's own report. Half is f16 and bf16 "
    "together.",
    "Headroom used is the largest magnitude as a share of the largest number of its type; above one half is "
    "marked.",
    "Zero events do not prove health: nixnan cannot see tensor core products of Hopper, conversions, 8-bit "
    "arithmetic or stores by other instructions; the Python level sees values at module boundaries only.",
)


def report(
    tables: NanTables,
    sass: SassTables,
    *,
    out: Path,
    title: str,
    provenance: dict[str, dict[str, str]],
    kind: str,
    lacking: list[str],
) -> Findings:
    """Write tables/*.csv, figures/*.png and report.html into `out`. Raises StorageError if that fails."""
    frames = {name: getattr(tables, name) for name in TABLES} | sass.frames()
    files = [
        write_csv(frame, out / "tables" / f"{name}.csv")
        for name, frame in frames.items()
        if len(frame) or name == "experiments"
    ]
    verdict, status = [*sentences(tables), *sass.sentences], _status(tables, lacking)
    page = Page(
        title=title,
        question=QUESTION,
        verdict=verdict,
        status=status,
        cards=_cards(tables),
        sections=_sections(tables, sass, out / "figures"),
        provenance=provenance,
        footnotes=FOOTNOTES,
        room="nan",
        kind=kind,
    )
    files += [out / png for png in page.pictures]
    files.append(write_page(page, out / "report.html"))
    return Findings(verdict, status, files, _terminal(tables, verdict, files[-1]), lacking)


def _terminal(tables: NanTables, verdict: Sequence[str], page: Path) -> str:
    shown = terminal_table(tables.experiments[TERMINAL].dropna(axis=1, how="all"), width=140)
    return "\n".join(
        [verdict[0], *(f"- {sentence}" for sentence in verdict[1:]), "", shown, "", f"report: {page}"]
    )


def _status(tables: NanTables, lacking: Sequence[str]) -> Status:
    """ok if all were compared and nothing left a kernel; fail if nothing can be compared."""
    able = tables.experiments[tables.experiments["rank"].notna()]
    if able.empty:
        return "fail"
    harm = any(SEVERITY[verdict] > 0 for verdict in able["verdict"])
    doubts = len(able) < len(tables.experiments) or any(
        evidence_row.log_error for evidence_row in tables.evidence
    )
    return "warn" if harm or doubts or lacking else "ok"


def _cards(tables: NanTables) -> list[Card]:
    frame, source = tables.experiments, "tables/experiments.csv"
    able = int(frame["rank"].notna().sum())
    cards = [Card("Comparable experiments", f"{able} of {len(frame)}", source)]
    reached = frame[frame["verdict"].isin([name for name, grade in SEVERITY.items() if grade >= 2])]
    if len(reached):
        names = ", ".join(reached["experiment"])
        cards.append(Card("Experiments with bad module outputs", str(len(reached)), source, note=names))
    for experiment in tables.evidence:
        birth = (experiment.watch or {}).get("first")
        if birth and len(cards) < 6:
            cause = tables.causes[experiment.label].text if experiment.label in tables.causes else ""
            note = "; ".join(filter(None, [birth["place"], cause, f"{birth['phase']}, step {birth['step']}"]))
            module = birth["module"].rsplit(".", 1)[-1] or "the model"
            cards.append(Card(f"First producer, {experiment.label}", module, "tables/births.csv", note=note))
    return cards


def _sections(tables: NanTables, sass: SassTables, folder: Path) -> list[Section]:
    of_room = [*instruction_blocks(tables), *function_blocks(tables, folder)]
    sections = [
        Section("Ranking", ranking_blocks(tables)),
        Section("How far bad numbers got", chain_blocks(tables, folder)),
        Section("First producers", birth_blocks(tables)),
        Section("Layers", layer_blocks(tables)),
        Section("Instructions and kernels", [*of_room, *sass_page.blocks(sass)]),
        Section("What ran: requested and effective", applied_blocks(tables)),
        Section("Evidence: nixnan's own lines", sass_page.evidence_blocks(sass)),
        Section("What nixnan cannot see", sass_page.coverage_blocks(sass)),
    ]
    if tables.problems:
        sections.append(Section("Problems", [Points(tables.problems)]))
    return [section for section in sections if section.blocks]
