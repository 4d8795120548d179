"""The page: cards, answers, figures, tables, checks and problems."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lab.core import plan
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import counted, holes
from lab.report.page import write_page
from lab.report.parts import Block, Card, Page, Points, Prose, Section, Status, Table
from lab.report.tables import terminal_table, write_csv
from lab.rooms.nsys.answers.answer import FAILED, OK, Answer
from lab.rooms.nsys.config import QUESTIONS
from lab.rooms.nsys.report.blocks import PILLS, attention_blocks, matrix_blocks, time_blocks
from lab.rooms.nsys.report.results import Results, brief_cells
from lab.rooms.nsys.report.tables import all_tables
from lab.rooms.nsys.report.verdict import verdict

TITLE = "Where does the time of a Transformer go"

# Outcomes that are results; a cell with any other one is missing.
RESULT = ("ok", "oom", "no_gpu_data", "skipped_estimate")

FOOTNOTES = (
    "Kernel time is the sum of kernel durations, busy the union of all device work, span from its first "
    "start to its last end, wall the range's own time on the host. They are different quantities.",
    "Means over the measured steps; warm-up steps are left out. ± is the sample standard deviation.",
    "A kernel belongs to the range on the thread that launched it; without a phase there, to the phase "
    "around the launch on another thread of the process. nsys' own reports use the first rule only, and so "
    "miss most of backward.",
    "Matrix products are recognised by the names of their kernels, split-K reductions apart; "
    "FLOPs count multiply and add as two.",
    "Minimum bytes: each input read and each output written once; plain softmax is five such passes.",
)


class Findings(plan.Findings, frozen=True):
    """What the room found, with its answers to the questions."""

    answers: list[Answer] = []


def report(
    results: Results, *, out: Path, title: str, provenance: dict[str, dict[str, str]], kind: str
) -> Findings:
    """Write tables, figures, the summary and report.html below `out`, and say what they show."""
    tables = all_tables(results)
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in tables.items()]
    sentences, status = verdict(results), status_of(results)
    page = Page(
        title=title,
        question=TITLE + "?",
        verdict=sentences,
        status=status,
        cards=_cards(results, tables),
        sections=_sections(results, tables, out / "figures"),
        provenance=provenance,
        footnotes=FOOTNOTES,
        room="nsys",
        kind=kind,
    )
    files += [out / png for png in page.pictures]
    files.append(write_page(page, out / "report.html"))
    terminal = "\n\n".join(
        ["\n".join(sentences), terminal_table(brief_cells(results.cells)), f"report: {files[-1]}"]
    )
    return Findings(
        sentences,
        status,
        files,
        terminal,
        missing_cells(results),
        incomplete(results),
        answers=results.answers,
    )


def incomplete(results: Results) -> list[str]:
    """One sentence per finding about the recording of each cell."""
    recorded = [(cell.label, cell.recording) for cell in results.data]
    return [f"{name}: {text}" for name, one in recorded if one for text in sentences(counted(one.lacks))]


def missing_cells(results: Results) -> list[str]:
    """Cells without a result, and holes in the recordings of the others."""
    bad = results.cells[~results.cells["outcome"].isin(RESULT)]
    absent = [
        f"{row.cell}: {row.outcome}{f': {row.reason}' if row.reason else ''}" for row in bad.itertuples()
    ]
    return absent + [
        f"{cell.label}: {sentence}"
        for cell in results.data
        if cell.recording is not None
        for sentence in sentences(holes(cell.recording.lacks))
    ]


def status_of(results: Results) -> Status:
    if not any(answer.given for answer in results.answers) and missing_cells(results):
        return "fail"
    doubts = (
        bool((results.cells["outcome"] != "ok").any()),
        any(answer.state != OK for answer in results.answers),
        len(results.problems) > 0,
    )
    return "warn" if any(doubts) else "ok"


def _cards(results: Results, tables: dict[str, pd.DataFrame]) -> list[Card]:
    cells = results.cells
    cards = [
        Card("Cells recorded", f"{int((cells['outcome'] == 'ok').sum())} of {len(cells)}", "tables/cells.csv")
    ]
    for answer in reversed(results.answers):
        if answer.part == "d" and answer.given:
            share = float(answer.values["step_matmul_percent"])
            cards.append(
                Card("Matrix products, training step", f"{share:.1f}", "tables/values.csv", "%", answer.cell)
            )
            break
    for answer in reversed(results.answers):
        if answer.part == "e" and answer.given:
            cards.append(
                Card(
                    "Softmax over QK^T",
                    f"{float(answer.values['time_ratio']):.2f}",
                    "tables/values.csv",
                    "×",
                    f"time per layer, {answer.cell}",
                )
            )
            break
    checks = tables["checks"]
    if len(checks):
        held = int((checks["state"] == OK).sum())
        cards.append(Card("Self-checks that hold", f"{held} of {len(checks)}", "tables/checks.csv"))
    return cards


def _sections(results: Results, tables: dict[str, pd.DataFrame], folder: Path) -> list[Section]:
    found = [
        Section("Answers", _answer_blocks(results, tables)),
        Section("Sizes and contexts", matrix_blocks(results, folder)),
        Section("Where the time goes", time_blocks(results, tables, folder)),
        Section("Attention and ceilings", attention_blocks(results, tables, folder)),
        Section(
            "Self-checks",
            [Table(tables["checks"], "Every check of every answer", "tables/checks.csv", pills=PILLS)]
            if len(tables["checks"])
            else [],
        ),
        Section(
            "Problems",
            [
                Table(
                    results.problems,
                    "What could not be read, or looks wrong",
                    "tables/problems.csv",
                )
            ]
            if len(results.problems)
            else [],
        ),
    ]
    return [section for section in found if section.blocks]


def _answer_blocks(results: Results, tables: dict[str, pd.DataFrame]) -> list[Block]:
    blocks: list[Block] = []
    for part, question in QUESTIONS.items():
        given = [answer for answer in results.answers if answer.part == part]
        if given:
            blocks.append(Prose(f"({part}) {question}"))
            blocks.append(Points([f"{a.cell}: {a.sentence}{_mark(a)}" for a in given[:12]]))
    if len(tables["answers"]):
        blocks.append(Table(tables["answers"], "All answers", "tables/answers.csv", pills=PILLS, open_rows=0))
    return blocks


def _mark(answer: Answer) -> str:
    failed = [check.name for check in answer.checks if check.state == FAILED]
    return f" A self-check failed: {'; '.join(failed)}." if failed else ""
