"""The page: cards, answers, figures, tables, checks and problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.core.plan import Findings
from lab.core.run import Run
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import Lack, counted, holes
from lab.report.figures import save, stacked_bars
from lab.report.page import write_page
from lab.report.parts import Block, Card, Figure, Page, Points, Prose, Section, Status, Table, title_of
from lab.report.provenance import provenance
from lab.report.tables import terminal_table, write_csv
from lab.report.terminal import Heading
from lab.rooms.nsys.answers.answer import FAILED, OK, OPEN, Answer
from lab.rooms.nsys.config import QUESTIONS, TYPES
from lab.rooms.nsys.layout import CellData
from lab.rooms.nsys.recording import PHASES
from lab.rooms.nsys.report.tables import Results, all_tables, verdict

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


def report(results: Results, path: Path, out: Path, run: Run | None) -> Findings:
    """Write tables, figures and the page of a run, a folder or a file below `out`."""
    manifest = run.manifest if run else None
    tables = all_tables(results)
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in tables.items()]
    text, lacking, incomplete = verdict(results), _lacking(results), _sentences(results, counted)
    status = _status(results, lacking)
    page = Page(
        title=title_of("Nsys", path.resolve().name),
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
    return Findings(text, status, files, terminal, lacking, incomplete)


def _lacking(results: Results) -> list[str]:
    """Cells without a result, and holes in the recordings of the others."""
    absent = results.cells[~results.cells["outcome"].isin(RESULT)]
    rows = [
        f"{row.cell}: {row.outcome}{f': {row.reason}' if row.reason else ''}" for row in absent.itertuples()
    ]
    return rows + _sentences(results, holes)


def _sentences(results: Results, chosen: Callable[[Sequence[Lack]], list[Lack]]) -> list[str]:
    """A sentence per chosen finding about the recording of each cell."""
    recorded = [(cell.label, cell.recording) for cell in results.data if cell.recording]
    return [f"{label}: {text}" for label, seen in recorded for text in sentences(chosen(seen.lacks))]


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


HEADINGS = {
    "not_nsys_because": Heading("not nsys, because", ""),
    "wall_ms": Heading("step, wall", "ms"),
    "plain_ms": Heading("step, no profiler", "ms"),
    "overhead_percent": Heading("longer than without profiler", "%"),
}
PILLS = {
    OK: "ok",
    FAILED: "fail",
    OPEN: "unknown",
    "no answer": "unknown",
    **dict.fromkeys(("oom", "no_gpu_data", "skipped_estimate"), "warn"),
    **dict.fromkeys(("failed", "timeout", "missing", "unreadable"), "fail"),
}
# Kernel classes drawn as one colour each: role -> (words, classes).
CLASS_COLOURS = {
    "computation": ("matrix products", ("gemm", "gemv", "attention", "conv")),
    "communication": ("elementwise", ("elementwise", "mask", "rope", "triton")),
    "memcpy": ("copies and gathers", ("copy", "index", "memcpy", "memset")),
    "ok": ("reductions, softmax, norms", ("reduce", "scan", "softmax", "norm", "splitk_reduce")),
    "fail": ("optimizer", ("optimizer",)),
    "unknown": ("other", ()),
}


def sections(results: Results, tables: dict[str, pd.DataFrame], folder: Path) -> list[Section]:
    """The sections with something in them; figures go to `folder`."""
    checks, problems, attention = tables["checks"], results.problems, tables["attention"]
    blocks: dict[str, list[Block]] = {
        "Answers": _answer_blocks(results, tables["answers"]),
        "Sizes and contexts": _cell_blocks(results, tables["overview"]),
        "Where the time goes": _time_blocks(results, tables, folder),
        "Attention": [Table(attention, "Its parts in the forward pass, per layer", "tables/attention.csv")],
        "Self-checks": [Table(checks, "Every check of every answer", "tables/checks.csv", pills=PILLS)],
        "Problems": [Table(problems, "What could not be read, or looks wrong", "tables/problems.csv")],
    }
    empty = {"Attention": attention.empty, "Self-checks": checks.empty, "Problems": problems.empty}
    return [Section(title, parts) for title, parts in blocks.items() if parts and not empty.get(title)]


def _answer_blocks(results: Results, table: pd.DataFrame) -> list[Block]:
    blocks: list[Block] = []
    for part, question in QUESTIONS.items():
        answers = [answer for answer in results.answers if answer.part == part]
        if answers:
            blocks.append(Prose(f"({part}) {question}"))
            blocks.append(Points([f"{a.cell}: {a.sentence}{_failed_checks(a)}" for a in answers[:12]]))
    if len(table):
        blocks.append(Table(table, "All answers", "tables/answers.csv", pills=PILLS, open_rows=0))
    return blocks


def _failed_checks(answer: Answer) -> str:
    failed = [check.name for check in answer.checks if check.state == FAILED]
    return f" A self-check failed: {'; '.join(failed)}." if failed else ""


def _cell_blocks(results: Results, overview: pd.DataFrame) -> list[Block]:
    cells = results.cells.drop(columns=["cell", "capture"])
    cells = cells[[name for name in cells if (cells[name].notna() & (cells[name] != "")).any()]]
    overview = overview.dropna(axis="columns", how="all")
    return [
        Table(overview, "Answers in numbers", "tables/overview.csv"),
        Table(cells, "Every cell", "tables/cells.csv", headings=HEADINGS, pills=PILLS),
    ]


def _time_blocks(results: Results, tables: dict[str, pd.DataFrame], folder: Path) -> list[Block]:
    classes, phases = tables["classes"], tables["phases"]
    blocks: list[Block] = []
    if len(classes):
        caption = (
            "Mean kernel time per measured step (warm-up left out) of each phase, by class of kernel; "
            "for each size and context the profile type with most phases."
        )
        svg = save(_phase_drawing(results), folder, "phases")
        blocks.append(Figure(svg, caption, "figures/phases.png", "tables/classes.csv"))
    if len(phases):
        recorded = phases.dropna(axis="columns", how="all")
        blocks.append(Table(recorded, "Phases, per measured step", "tables/phases.csv"))
    if len(classes):
        kernels = tables["kernels"].groupby(["cell", "phase"], sort=False).head(5).drop(columns="name")
        for name, frame, caption in (
            ("classes", classes, "Classes of kernels, per measured step"),
            ("kernels", kernels, "The five costliest kernels of each phase"),
        ):
            shown = frame[frame["phase"] != "step"]
            blocks.append(Table(shown, caption, f"tables/{name}.csv", open_rows=12))
    return blocks


def _phase_drawing(results: Results) -> Drawing:
    labels, rows = [], []
    for cell in _fullest(results):
        classes = cell.tables["classes"]
        for phase in PHASES:
            ms = classes[classes["phase"] == phase].set_index("class")["ms"]
            if len(ms):
                labels.append(f"{cell.size} {cell.context} {phase.removesuffix('_step')}")
                rows.append(ms)
    named = [kind for _, kinds in CLASS_COLOURS.values() for kind in kinds]
    sums = {
        role: np.array(
            [row[row.index.isin(kinds) if kinds else ~row.index.isin(named)].sum() for row in rows]
        )
        for role, (_, kinds) in CLASS_COLOURS.items()
    }
    parts = {role: of_role for role, of_role in sums.items() if of_role.any()}
    words = {role: text for role, (text, _) in CLASS_COLOURS.items()}
    return stacked_bars(labels, parts, axis="ms of kernel time per measured step", words=words)


def _fullest(results: Results) -> list[CellData]:
    """For each size and context the cell with most phases."""
    fullest: dict[tuple[str, int], CellData] = {}
    for cell in results.data:
        if cell.has_kernels:
            rival = fullest.setdefault(cell.size_and_context, cell)
            if TYPES.index(cell.type) > TYPES.index(rival.type):
                fullest[cell.size_and_context] = cell
    return list(fullest.values())
