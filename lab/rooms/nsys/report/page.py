"""The page: cards, answers, figures, tables, checks and problems."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lab.core import plan
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import counted, holes
from lab.report.page import write_page
from lab.report.parts import Card, Page, Status
from lab.report.tables import terminal_table, write_csv
from lab.rooms.nsys.answers.answer import OK, Answer
from lab.rooms.nsys.report.sections import sections
from lab.rooms.nsys.report.tables import Results, all_tables
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
    text, lacking, incomplete = verdict(results), _lacking(results), _incomplete(results)
    status = _status(results, lacking)
    page = Page(
        title=title,
        question=TITLE + "?",
        verdict=text,
        status=status,
        cards=_cards(results, tables["checks"]),
        sections=sections(results, tables, out / "figures"),
        provenance=provenance,
        footnotes=FOOTNOTES,
        room="nsys",
        kind=kind,
    )
    files += [out / png for png in page.pictures]
    files.append(write_page(page, out / "report.html"))
    terminal = "\n\n".join(["\n".join(text), terminal_table(results.brief_cells), f"report: {files[-1]}"])
    return Findings(text, status, files, terminal, lacking, incomplete, answers=results.answers)


def _incomplete(results: Results) -> list[str]:
    """One sentence per finding about the recording of each cell."""
    return [
        f"{cell.label}: {sentence}"
        for cell in results.data
        if cell.recording is not None
        for sentence in sentences(counted(cell.recording.lacks))
    ]


def _lacking(results: Results) -> list[str]:
    """Cells without a result, and holes in the recordings of the others."""
    absent = results.cells[~results.cells["outcome"].isin(RESULT)]
    rows = [
        f"{row.cell}: {row.outcome}{f': {row.reason}' if row.reason else ''}" for row in absent.itertuples()
    ]
    torn = [
        f"{cell.label}: {sentence}"
        for cell in results.data
        if cell.recording is not None
        for sentence in sentences(holes(cell.recording.lacks))
    ]
    return rows + torn


def _status(results: Results, lacking: list[str]) -> Status:
    if lacking and not any(answer.is_answered for answer in results.answers):
        return "fail"
    all_ok = (results.cells["outcome"] == "ok").all() and results.problems.empty
    return "ok" if all_ok and all(answer.state == OK for answer in results.answers) else "warn"


def _cards(results: Results, checks: pd.DataFrame) -> list[Card]:
    recorded = f"{int((results.cells['outcome'] == 'ok').sum())} of {len(results.cells)}"
    cards = [Card("Cells recorded", recorded, "tables/cells.csv")]
    last_answers = {answer.part: answer for answer in results.answers if answer.is_answered}
    if answer := last_answers.get("d"):
        share = f"{float(answer.values['step_matmul_percent']):.1f}"
        cards.append(Card("Matrix products, training step", share, "tables/values.csv", "%", answer.cell))
    if answer := last_answers.get("e"):
        ratio, note = f"{float(answer.values['time_ratio']):.2f}", f"time per layer, {answer.cell}"
        cards.append(Card("Softmax over QK^T", ratio, "tables/values.csv", "×", note))
    if len(checks):
        passed = f"{int((checks['state'] == OK).sum())} of {len(checks)}"
        cards.append(Card("Self-checks that hold", passed, "tables/checks.csv"))
    return cards
