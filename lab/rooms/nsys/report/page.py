"""The page: cards, answers, figures, tables, checks and problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from lab.core import plan
from lab.core.run import Run
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import Lack, counted, holes
from lab.report.page import write_page
from lab.report.parts import Card, Page, Status
from lab.report.provenance import provenance
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


def report(results: Results, path: Path, out: Path, run: Run | None) -> Findings:
    """Write tables, figures and the page of a run, a folder or a file below `out`, and say what they show."""
    manifest = run.manifest if run else None
    tables = all_tables(results)
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in tables.items()]
    text, lacking, incomplete = verdict(results), _lacking(results), _incomplete(results)
    status = _status(results, lacking)
    page = Page(
        title=f"Nsys {path.resolve().name}",
        question=TITLE + "?",
        verdict=text,
        status=status,
        cards=_cards(results, tables["checks"]),
        sections=sections(results, tables, out / "figures"),
        provenance=provenance(path, manifest),
        footnotes=FOOTNOTES,
        room="nsys",
        kind=manifest.kind.value if manifest else "measured",
    )
    files += [out / png for png in page.pictures]
    files.append(write_page(page, out / "report.html"))
    terminal = "\n\n".join(["\n".join(text), terminal_table(results.brief_cells), f"report: {files[-1]}"])
    return Findings(text, status, files, terminal, lacking, incomplete, answers=results.answers)


def _incomplete(results: Results) -> list[str]:
    """One sentence per finding about the recording of each cell."""
    return _sentences(results, counted)


def _lacking(results: Results) -> list[str]:
    """Cells without a result, and holes in the recordings of the others."""
    absent = results.cells[~results.cells["outcome"].isin(RESULT)]
    rows = [
        f"{row.cell}: {row.outcome}{f': {row.reason}' if row.reason else ''}" for row in absent.itertuples()
    ]
    return rows + _sentences(results, holes)


def _sentences(results: Results, chosen: Callable[[Sequence[Lack]], list[Lack]]) -> list[str]:
    """A sentence per chosen finding about the recording of each cell."""
    recorded = [(cell.label, cell.recording) for cell in results.data]
    return [f"{label}: {text}" for label, one in recorded if one for text in sentences(chosen(one.lacks))]


def _status(results: Results, lacking: list[str]) -> Status:
    if lacking and not any(answer.is_answered for answer in results.answers):
        return "fail"
    all_ok = (results.cells["outcome"] == "ok").all() and results.problems.empty
    return "ok" if all_ok and all(answer.state == OK for answer in results.answers) else "warn"


def _cards(results: Results, checks: pd.DataFrame) -> list[Card]:
    recorded = f"{int((results.cells['outcome'] == 'ok').sum())} of {len(results.cells)}"
    cards = [Card("Cells recorded", recorded, "tables/cells.csv")]
    if len(checks):
        passed = f"{int((checks['state'] == OK).sum())} of {len(checks)}"
        cards.append(Card("Self-checks that hold", passed, "tables/checks.csv"))
    return cards
