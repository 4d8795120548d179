"""From a folder to findings: find the cells, read their captures, answer the questions, write the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pandas as pd

from lab.core.run import Run
from lab.core.step import Outcome, Status
from lab.errors import LabError, MissingError
from lab.recordings.capture import Capture
from lab.recordings.integrity.words import sentences
from lab.recordings.load import load_capture
from lab.recordings.processes import process_label, single_processes
from lab.recordings.projection import PhaseNames, project
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
from lab.rooms.nsys.measured import Recording
from lab.rooms.nsys.recording import recording_of
from lab.rooms.nsys.report.page import Findings, report
from lab.rooms.nsys.report.published import write_reports
from lab.rooms.nsys.report.results import Results, cell_row
from lab.rooms.nsys.report.verdict import write_summary

PROBLEMS = ["cell", "file", "what", "fix"]
NO_STEPS = "the capture has no range `step_N`"
TREE = Path("results") / "nsight_profiles"


def analyse_nsys(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Read every capture below `folder`; tables, figures, summary, reports and page go to `out`.

    Raises MissingError where there is no cell at all.
    """
    found = merged(find_cells(folder), planned(run))
    if not found:
        raise MissingError(
            "no captures of the nsys room in this folder",
            location=folder,
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
        for cell, reason in read_cell(one, folder, problems, keep):
            data.append(cell)
            rows.append(cell_row(cell, *outcome_of(cell, ended.get(one.cell.name.lower()), reason)))
        progress(f"  {number} of {len(found)}: {one.label}")
    return Results(pd.DataFrame(rows), data, all_answers(data), pd.DataFrame(problems, columns=PROBLEMS))


def results_of_one(
    path: Path, spec: ModelSpec | None, context: int, batch: int, names: PhaseNames | None = None
) -> Results:
    """One capture by itself, each process of it a cell; its phases determine the profile type.

    Raises what the reader raises.
    """
    data: list[CellData] = []
    problems: list[dict[str, str]] = []
    rows: list[dict[str, object]] = []
    for process, recording in recordings_of(load_capture(path), names):
        size, kind = spec.name if spec else path.name, _type_of(recording)
        found = _of_process(
            Found(
                cell=Cell(size=size, context=context, type=kind, parts=tuple(PART_TYPES)),
                capture=path,
                spec=spec,
                batch=batch if spec else None,
            ),
            process,
        )
        cell = CellData(found, recording, tables_of(recording, spec, found.batch, context, "fp32"))
        problems += [_problem(cell, path.name, text) for text in _notes(recording)]
        reason = "" if recording.steps else NO_STEPS
        rows.append(cell_row(cell, *outcome_of(cell, None, reason)))
        data.append(cell)
    answers = sorted((answer for cell in data for answer in one_of_each(cell)), key=lambda one: one.part)
    return Results(pd.DataFrame(rows), data, answers, pd.DataFrame(problems, columns=PROBLEMS))


def _of_process(found: Found, process: str) -> Found:
    """The cell of one process of several: no table or figure may put two into one place."""
    if not process:
        return found
    cell = msgspec.structs.replace(found.cell, size=f"{found.cell.size}, {process}")
    return msgspec.structs.replace(found, cell=cell)


def _type_of(recording: Recording) -> ProfileType:
    phases = set(recording.ranges["name"])
    if "optimizer_step" in phases:
        return "training"
    return "forward_backward" if "backward" in phases else "forward"


def recordings_of(capture: Capture, names: PhaseNames | None = None) -> list[tuple[str, Recording]]:
    """(what tells a process from the others, "" for the only one; its recording), for each process.

    Processes without a measured step are left out where another one has some.
    """
    names = names or PhaseNames()
    found = [
        (process_label(one.processes[0], index), _with_index(one, index, names))
        for index, one in single_processes(capture).items()
    ]
    found = [one for one in found if one[1].steps] or found
    return found if len(found) > 1 else [("", found[0][1])]


def _with_index(capture: Capture, index: int, names: PhaseNames) -> Recording:
    recording = recording_of(project(capture, "full", names.pattern), names)
    return replace(recording, process_index=index)


def _notes(recording: Recording) -> list[str]:
    return [*recording.problems, *sentences(recording.lacks)]


def _problem(cell: CellData, file: str, text: str) -> dict[str, str]:
    return {"cell": cell.label, "file": file, "what": text, "fix": ""}


def one_of_each(cell: CellData) -> list[Answer]:
    """The answers to all questions from one capture alone."""
    if cell.recording is None or not cell.recording.steps:
        return []
    return [answer(cell, []) for answer in (part_a, part_b, part_c, part_d, part_e)]


def read_cell(
    found: Found, folder: Path, problems: list[dict[str, str]], keep: Callable[[Found, Capture], None]
) -> list[tuple[CellData, str]]:
    """The cell with its tables, per process, and the reason where it has none; adds to `problems`."""
    if found.capture is None or (found.result is not None and found.result.outcome != "ok"):
        return [(CellData(found), "")]
    asked = found.result.asked if found.result else None
    name = _relative(found.capture, folder)
    try:
        capture = load_capture(found.capture)
        recordings = recordings_of(capture)
        keep(found, capture)
    except LabError as error:
        problems.append({"cell": found.label, "file": name, "what": error.problem, "fix": error.fix or ""})
        return [(CellData(found), error.problem)]
    cells = []
    for process, recording in recordings:
        dtype = asked.dtype if asked else "fp32"
        tables = tables_of(recording, found.spec, found.batch, found.cell.context, dtype)
        cell = CellData(_of_process(found, process), recording, tables)
        reason = "" if recording.steps else f"no measured steps: {NO_STEPS}"
        problems += [_problem(cell, name, text) for text in (*_notes(recording), *filter(None, [reason]))]
        cells.append((cell, reason))
    return cells


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
