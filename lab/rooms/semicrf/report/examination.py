"""The page of a diagnosis: one cause with its evidence, the matrix, the probes and the reproducer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.words import plural
from lab.report.figures import Cell, cell_grid, save
from lab.report.parts import Block, Card, Figure, Files, Points, Section, Table
from lab.report.tables import write_csv
from lab.rooms.semicrf import verdict as verdicts
from lab.rooms.semicrf.analyze import Examination
from lab.rooms.semicrf.report import FOUND, PILLS, finish, short_numbers

QUESTION = "Why does this semi-CRF give NaN, or drift: kernel, shared code, boundaries, objective or input?"
KERNEL_ALONE = "Not covered: shapes, dtypes and devices that no probe has, decoding, loss and training."
FOOTNOTES = (
    "A cell of the matrix is one short training; padding and free memory hold NaN.",
    "Probes of kernels run on one batch of the model's own scores, cut to a size that float64 from the "
    "definition can compute.",
    "A race that did not show in any run is not found. The linter shows that the objective is a probability, "
    "not that it is a good one.",
)

COLUMNS = (
    *("backend", "lengths", "reg", "order", "repeat"),
    *("outcome", "step", "message", "transition_max", "duration_max", "weights"),
)
LEGEND = {"passed": "ok", "failed": "fail", "different bits": "warn"}


def examination(examined: Examination, out: Path, run: Run) -> Findings:
    """Write the page and its tables."""
    named = run.manifest.config.get("partition")
    if named:
        verdict = verdicts.of_kernel(examined.probes, named)
    else:
        verdict = verdicts.diagnose(examined.cells, examined.probes, examined.tested, examined.reference)
    matrix = pd.DataFrame(examined.cells).reindex(columns=list(COLUMNS))
    tables = {"matrix": matrix, "probes": _probe_frame(examined.probes)}
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in tables.items() if len(frame)]
    sentences = [*verdict.sentences, *_reproducer_sentences(examined)]
    sentences += [KERNEL_ALONE] if named else [_not_covered(examined)]
    sentences += [] if examined.cells and examined.probes else [f"{reason}." for reason in examined.missing]
    probes = tables["probes"]
    dirty = probes.loc[probes["verdict"] == "dirty", ["probe", "backend", "text"]]
    return finish(
        *(run, out, files, dirty, examined.missing),
        question=QUESTION,
        verdict=sentences,
        status="fail" if examined.missing and not examined.cells else verdict.status,
        cards=_cards(examined, verdict),
        sections=_sections(examined, verdict, tables, out),
        footnotes=FOOTNOTES,
        badge=FOUND if verdict.status == "fail" else "",
    )


def _sections(
    examined: Examination, verdict: verdicts.Diagnosis, tables: dict[str, pd.DataFrame], out: Path
) -> list[Section]:
    """Evidence, matrix, probes and reproducer, as far as they are there."""
    sections = [Section("Evidence", [Points(verdict.evidence)])] if verdict.evidence else []
    if examined.cells:
        blocks = matrix_blocks(examined.cells, tables["matrix"], out / "figures", examined.fixed_length)
        sections.append(Section("The matrix", blocks))
    if examined.probes:
        rows = short_numbers(tables["probes"])
        table = Table(rows, "Each asks one question", "tables/probes.csv", pills=PILLS, open_rows=60)
        sections.append(Section("Probes", [table]))
    if examined.reproducer:
        entries = [(f"{examined.reproducer_folder}/{name}", "") for name in examined.reproducer["files"]]
        sections.append(Section("Reproducer", [Files("Run it with python reproduce.py", entries)]))
    return sections


def _not_covered(examined: Examination) -> str:
    """What ran, and the forms and functions that nothing here looked at."""
    ran = {row["backend"] for row in (*examined.cells, *examined.probes)} - {""}
    if not ran:
        return "Nothing was covered: no part of this run finished."
    left = [text for name, text in (("torch", "torch"), ("native", "the compiled form")) if name not in ran]
    if examined.device == "cpu" and "native" in ran:
        left.append("the compiled form for GPUs")
    place = "CPU" if examined.device == "cpu" else "GPU"
    return (
        f"Covered: {' and '.join(sorted(ran))} on this {place}, the loss and its gradient. "
        f"Not covered: {', '.join([*left, 'decoding', 'sampling'])}; "
        "lab run semicrf check compares the decoding and the forms of its device with float64."
    )


def _reproducer_sentences(examined: Examination) -> list[str]:
    if not examined.reproducer:
        return []
    sequences = plural(examined.reproducer["sequences"], "sequence")
    frames = plural(examined.reproducer["frames"], "frame")
    return [f"The smallest case that still fails has {sequences} of {frames}: {examined.reproducer['text']}."]


def _probe_frame(probes: Sequence[dict[str, Any]]) -> pd.DataFrame:
    columns = ["probe", "backend", "clean", "value", "limit", "cause", "text"]
    frame = pd.DataFrame(probes).reindex(columns=columns)
    verdicts = ["clean" if clean else "dirty" for clean in frame.pop("clean")]
    frame.insert(2, "verdict", verdicts)
    renamed: pd.DataFrame = frame.rename(columns={"cause": "speaks for"})
    return renamed


def _cards(examined: Examination, verdict: verdicts.Diagnosis) -> list[Card]:
    failed = sum(cell["outcome"] == "failed" for cell in examined.cells)
    dirty = sum(not row["clean"] for row in examined.probes)
    cards = [Card("Cause", verdict.cause, "tables/probes.csv", note=verdicts.CAUSES[verdict.cause])]
    if examined.cells:
        cards.append(Card("Trainings that failed", f"{failed} of {len(examined.cells)}", "tables/matrix.csv"))
    if examined.probes:
        cards.append(Card("Dirty probes", f"{dirty} of {len(examined.probes)}", "tables/probes.csv"))
    return cards


def matrix_blocks(
    cells: list[dict[str, Any]], frame: pd.DataFrame, folder: Path, fixed: int | None
) -> list[Block]:
    """The picture and the table."""
    figure = save(_grid(cells), folder, "matrix")
    length = "none" if fixed is None else plural(fixed, "frame")
    caption = (
        f"Each cell is one training. Fixed length: {length}; shorter utterances are left out. Cells of one "
        "row and order that ended with different weights are marked: same input, different bits."
    )
    shown = frame.drop(columns=["weights"])
    return [
        Figure(figure, caption, "figures/matrix.png", "tables/matrix.csv"),
        Table(shown, "Every training of the matrix", "tables/matrix.csv", pills=PILLS, open_rows=16),
    ]


def _grid(cells: list[dict[str, Any]]) -> Drawing:
    rows = list(dict.fromkeys((c["backend"], c["lengths"], c["reg"]) for c in cells))
    columns = list(dict.fromkeys((c["order"], c["repeat"]) for c in cells))
    by_key = {(c["backend"], c["lengths"], c["reg"], c["order"], c["repeat"]): c for c in cells}

    def cell(down: int, across: int) -> Cell | None:
        case = rows[down]
        training = by_key.get((*case, *columns[across]))
        if training is None:
            return None
        first_repeat = (*case, columns[across][0], 0)
        text, role = _look(training, by_key[first_repeat])
        return Cell(text, role, 0.55, training["message"] or "")

    names = [f"{backend}, {lengths}, reg {reg:g}" for backend, lengths, reg in rows]
    heads = [f"order {order + 1}\nrun {repeat + 1}" for order, repeat in columns]
    return cell_grid(names, heads, cell, legend=LEGEND)


def _look(training: dict[str, Any], reference: dict[str, Any]) -> tuple[str, str]:
    """Text and colour of a training; `reference` is the first repeat with the same input."""
    if training["outcome"] == "failed":
        return f"step {training['step'] + 1}", "fail"
    both_passed = training["outcome"] == reference["outcome"] == "passed"
    if both_passed and training["weights"] != reference["weights"]:
        return "different bits", "warn"
    return training["outcome"], "warn" if training["outcome"] == "skipped" else "ok"
