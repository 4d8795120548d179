"""From a folder to findings: find the cells, read their captures, answer the questions, write the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from lab.core.run import Run
from lab.core.step import Outcome, Status
from lab.errors import LabError, MissingError
from lab.recordings.capture import Capture
from lab.recordings.integrity.words import sentences
from lab.recordings.load import load_capture
from lab.recordings.projection import project
from lab.report.provenance import provenance
from lab.rooms.nsys.analyze import tables_of
from lab.rooms.nsys.answers.answer import Answer, CellData
from lab.rooms.nsys.answers.attention import part_e
from lab.rooms.nsys.answers.kernels import part_b, part_c
from lab.rooms.nsys.answers.questions import answers_of
from lab.rooms.nsys.answers.timing import part_a
from lab.rooms.nsys.answers.training import part_d
from lab.rooms.nsys.config import PART_TYPES, TYPES, Cell, ProfileType, parts_of
from lab.rooms.nsys.flops import ModelSpec
from lab.rooms.nsys.layout import Found, find_cells
from lab.rooms.nsys.recording import recording_of
from lab.rooms.nsys.report.page import Findings, report
from lab.rooms.nsys.report.published import write_reports
from lab.rooms.nsys.report.results import Results, cell_row
from lab.rooms.nsys.report.verdict import write_summary

PROBLEMS = ["cell", "file", "what", "fix"]
TREE = Path("results") / "nsight_profiles"


def analyse_nsys(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Read every capture below `folder`; tables, figures, summary, reports and page go to `out`.

    Raises MissingError where there is no cell at all.
    """
    found = merged(find_cells(folder), planned(run))
    if not found:
        raise MissingError(
            "no captures of the nsys room in this folder",
            where=folder,
            fix="record some with lab run nsys; for a single file use lab nsys answers FILE",
        )
    reports: list[Path] = []

    def keep(one: Found, capture: Capture) -> None:
        reports.extend(write_reports(one, capture, cell_parts(one.cell), out / TREE / "stats_reports"))

    results = results_of(found, outcomes(run), folder, progress, keep)
    asked = run.manifest.config.get("parts") if run else None
    if asked:
        results = replace(results, answers=[answer for answer in results.answers if answer.part in asked])
    manifest = run.manifest if run else None
    done = report(
        results,
        out=out,
        title=f"Nsys {folder.resolve().name}",
        provenance=provenance(folder, manifest),
        kind=manifest.kind.value if manifest else "measured",
    )
    done.files.append(write_summary(results, done.verdict, out / TREE / "ANALYSIS_SUMMARY.txt"))
    done.files.extend(reports)
    return done


def results_of(
    found: Sequence[Found],
    ended: dict[str, Outcome],
    folder: Path,
    progress: Callable[[str], None],
    keep: Callable[[Found, Capture], None] = lambda *_: None,
) -> Results:
    """Read and answer cell by cell; an unreadable cell is a row with its reason. keep gets every capture."""
    data: list[CellData] = []
    rows: list[dict[str, object]] = []
    problems: list[dict[str, str]] = []
    for number, one in enumerate(found, start=1):
        cell, reason = read_cell(one, folder, problems, keep)
        data.append(cell)
        rows.append(cell_row(cell, *outcome_of(cell, ended.get(one.cell.name.lower()), reason)))
        progress(f"  {number} of {len(found)}: {cell.label}")
    return Results(pd.DataFrame(rows), data, all_answers(data), pd.DataFrame(problems, columns=PROBLEMS))


def results_of_one(path: Path, spec: ModelSpec | None, context: int, batch: int) -> Results:
    """One capture by itself; its phases determine the profile type. Raises what the reader raises."""
    recording = recording_of(project(load_capture(path)))
    phases = set(recording.ranges["name"])
    kind: ProfileType = (
        "training"
        if "optimizer_step" in phases
        else "forward_backward"
        if "backward" in phases
        else "forward"
    )
    size = spec.name if spec else path.name
    found = Found(
        cell=Cell(size=size, context=context, type=kind, parts=tuple(PART_TYPES)),
        capture=path,
        spec=spec,
        batch=batch if spec else None,
    )
    cell = CellData(found, recording, tables_of(recording, spec, found.batch, context, "fp32"))
    problems = [
        {"cell": cell.label, "file": path.name, "what": text, "fix": ""}
        for text in (*recording.problems, *sentences(recording.lacks))
    ]
    reason = "" if recording.steps else "the capture has no range `step_N`"
    rows = [cell_row(cell, *outcome_of(cell, None, reason))]
    return Results(pd.DataFrame(rows), [cell], one_of_each(cell), pd.DataFrame(problems, columns=PROBLEMS))


def one_of_each(cell: CellData) -> list[Answer]:
    """The answers to all questions from one capture alone."""
    if cell.recording is None or not cell.recording.steps:
        return []
    return [answer(cell, []) for answer in (part_a, part_b, part_c, part_d, part_e)]


def read_cell(
    found: Found, folder: Path, problems: list[dict[str, str]], keep: Callable[[Found, Capture], None]
) -> tuple[CellData, str]:
    """The cell with its tables, and the reason where it has none; oddities are added to `problems`."""
    if found.capture is None or (found.result is not None and found.result.outcome != "ok"):
        return CellData(found), ""
    asked = found.result.asked if found.result else None
    name = _relative(found.capture, folder)
    try:
        capture = load_capture(found.capture)
        recording = recording_of(project(capture))
        keep(found, capture)
    except LabError as error:
        problems.append({"cell": found.label, "file": name, "what": error.what, "fix": error.fix or ""})
        return CellData(found), error.what
    notes = [*recording.problems, *sentences(recording.lacks)]
    if not recording.steps:
        notes.append("no measured steps: the capture has no range `step_N`")
    problems += [{"cell": found.label, "file": name, "what": text, "fix": ""} for text in notes]
    tables = tables_of(
        recording, found.spec, found.batch, found.cell.context, asked.dtype if asked else "fp32"
    )
    return CellData(found, recording, tables), "" if recording.steps else notes[-1]


def all_answers(data: Sequence[CellData]) -> list[Answer]:
    """Every answer of every cell, part by part."""
    answers = [
        answer
        for cell in data
        for answer in answers_of(cell, _siblings(cell, data), cell_parts(cell.found.cell))
    ]
    return sorted(answers, key=lambda answer: answer.part)


def cell_parts(cell: Cell) -> tuple[str, ...]:
    """The parts that this cell serves: those of its folder, otherwise all of its profile type."""
    return cell.parts or parts_of(cell.type, tuple(PART_TYPES))


def _siblings(cell: CellData, data: Sequence[CellData]) -> list[CellData]:
    key = (cell.found.cell.size, cell.found.cell.context)
    return [
        other
        for other in data
        if other is not cell and (other.found.cell.size, other.found.cell.context) == key
    ]


def outcome_of(cell: CellData, step: Outcome | None, reason: str) -> tuple[str, str]:
    """The outcome of a cell as one of the room's words, and why."""
    result = cell.found.result
    if result is not None and result.outcome == "oom":
        return "oom", result.reason
    if cell.recording is not None and cell.recording.steps:
        if cell.recording.has_kernels:
            return "ok", ""
        on_cpu = result is not None and result.asked.device == "cpu"
        return "no_gpu_data", "a CPU run has no kernels" if on_cpu else "no kernels"
    if cell.found.capture is not None and reason:
        return "unreadable", reason
    if step is None:
        return "missing", "no capture"
    if step.status is Status.skipped:
        return "skipped_estimate" if step.reason.startswith("skipped_estimate") else "missing", step.reason
    return ("failed" if step.status is Status.ok else step.status.value), step.reason or "no capture was left"


def planned(run: Run | None) -> list[Cell]:
    """Every cell that the run was to record."""
    labels = [record.step.labels for record in run.manifest.steps] if run else []
    return [
        Cell(size=str(label["size"]), context=int(label["context"]), type=type_named(str(label["type"])))
        for label in labels
        if label.get("profiled")
    ]


def type_named(text: str) -> ProfileType:
    """The profile type with this name, which the plan wrote into the step's labels."""
    return next(kind for kind in TYPES if kind == text)


def outcomes(run: Run | None) -> dict[str, Outcome]:
    """The outcome of every step that has ended, by its name."""
    records = run.manifest.steps if run else []
    return {record.step.name: record.outcome for record in records if record.outcome is not None}


def merged(found: list[Found], wanted: Sequence[Cell]) -> list[Found]:
    """The cells that were found and those that were planned, in the order of the plan if there is one."""
    have = {one.cell.name: one for one in found}
    named = [have.pop(cell.name, Found(cell=cell)) for cell in wanted]
    return [*named, *(one for one in found if one.cell.name in have)] if wanted else found


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
