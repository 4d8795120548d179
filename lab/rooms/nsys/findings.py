"""From a folder to findings: find the cells, read their captures, answer the questions, write the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pandas as pd

from lab.core.files import write_atomic
from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.step import Outcome, Status
from lab.errors import LabError, MissingError
from lab.recordings.capture import Capture
from lab.recordings.integrity.words import sentences
from lab.recordings.load import load_capture
from lab.recordings.phase_names import BACKWARD, OPTIMIZER
from lab.recordings.processes import process_label, single_processes
from lab.recordings.projection import PhaseNames, project
from lab.rooms.nsys.analyze import with_tables
from lab.rooms.nsys.answers.answer import Answer
from lab.rooms.nsys.answers.questions import all_answers, answers_of_one, cell_parts
from lab.rooms.nsys.captures.stats.reports import write_reports
from lab.rooms.nsys.config import TYPES, ProfileType
from lab.rooms.nsys.layout import CellData, find_cells, published_name
from lab.rooms.nsys.recording import recording_of
from lab.rooms.nsys.report.page import report
from lab.rooms.nsys.report.tables import Results, cell_row, summary_text

PROBLEMS = ["cell", "file", "what", "fix"]
NO_STEPS = "no measured steps: the capture has no range `step_N`"
TREE = Path("results") / "nsight_profiles"
REPORTS = (
    "cuda_gpu_kern_sum",
    "cuda_api_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "nvtx_sum",
    "nvtx_gpu_proj_sum",
    "nvtx_kern_sum",
)

Read = tuple[CellData, str, "LabError | None"]  # a cell, its file, why that cannot be read


def analyse_nsys(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Read every capture below `folder`; tables, figures, summary, reports and page go to `out`.

    Raises MissingError without any cell.
    """
    paths: list[Path] = []

    def write_stats(cell: CellData, capture: Capture) -> None:
        """Write nsys' own reports into the published tree; one without data is left out."""
        projection = project(capture, "nsys")
        for part_folder, base in dict.fromkeys(published_name(cell, part) for part in cell_parts(cell)):
            folder = out / TREE / "stats_reports" / part_folder
            paths.extend(write_reports(projection, REPORTS, folder, base)[0])

    results = results_of_folder(folder, run, progress, write_stats)
    parts = run.manifest.config.get("parts") if run else None
    if parts:
        results = replace(results, answers=[answer for answer in results.answers if answer.part in parts])
    findings = report(results, folder, out, run)
    summary = out / TREE / "ANALYSIS_SUMMARY.txt"
    write_atomic(summary, summary_text(results, findings.verdict))
    findings.files.extend([summary, *paths])
    return findings


def results_of_folder(
    folder: Path,
    run: Run | None,
    progress: Callable[[str], None] = lambda _: None,
    keep: Callable[[CellData, Capture], None] = lambda *_: None,
) -> Results:
    """Read and answer cell by cell; an unreadable cell is a row with its reason. keep gets every capture.

    Raises MissingError without any cell.
    """
    cells = merged(find_cells(folder), planned(run))
    if not cells:
        raise MissingError(
            "no captures of the nsys room in this folder",
            location=folder,
            fix="record some with lab run nsys; for a single file use lab nsys answers FILE",
        )
    read: list[Read] = []
    for number, cell in enumerate(cells, start=1):
        path, recorded = cell.capture, [cell]
        file, reason = "", None
        if path is not None and (cell.result is None or cell.result.outcome == "ok"):
            file = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
            try:
                capture = load_capture(path)
                keep(cell, capture)
                recorded = _of_processes(cell, capture)
            except LabError as error:
                reason = error
        read += [(of_process, file, reason) for of_process in recorded]
        progress(f"  {number} of {len(cells)}: {cell.label}")
    return _results(read, all_answers([cell for cell, _, _ in read]), run)


def results_of_file(cell: CellData, path: Path, names: PhaseNames | None = None) -> Results:
    """One capture by itself, each process of it a cell; its phases determine the profile type.

    Raises what the reader raises.
    """
    cells = []
    for of_process in _of_processes(cell, load_capture(path), names):
        phases = set(of_process.recording.ranges["name"])
        kind: ProfileType = "forward_backward" if BACKWARD in phases else "forward"
        kind = "training" if OPTIMIZER in phases else kind
        cells.append(msgspec.structs.replace(of_process, type=kind))
    answers = sorted((answer for cell in cells for answer in answers_of_one(cell)), key=lambda a: a.part)
    return _results([(cell, path.name, None) for cell in cells], answers, None)


def _of_processes(cell: CellData, capture: Capture, names: PhaseNames | None = None) -> list[CellData]:
    """A cell with its tables per process of several: no table or figure may put two into one place.

    Processes without a measured step are left out where another one has some.
    """
    names = names or PhaseNames()
    recordings = []
    for index, single in single_processes(capture).items():
        recording = recording_of(project(single, "full", names.pattern), names)
        recordings.append(replace(recording, process_index=index))
    recordings = [recording for recording in recordings if recording.steps] or recordings
    if len(recordings) == 1:
        return [with_tables(cell, recordings[0])]
    return [
        msgspec.structs.replace(
            with_tables(cell, recording),
            size=f"{cell.size}, {process_label(recording.process, recording.process_index)}",
        )
        for recording in recordings
    ]


def _results(read: Sequence[Read], answers: list[Answer], run: Run | None) -> Results:
    """Rows for every cell, and for what its recording lacks or why it cannot be read."""
    records = run.manifest.steps if run else []
    outcomes = {record.step.name: record.outcome for record in records}
    rows, problems = [], []
    for cell, file, error in read:
        step = outcomes.get(cell.name.lower())
        rows.append(cell_row(cell, *outcome_of(cell, step, error.problem if error else "")))
        if error:
            problems.append((cell.label, file, error.problem, error.fix or ""))
        elif recording := cell.recording:
            no_steps = [] if recording.steps else [NO_STEPS]
            texts = (*recording.problems, *sentences(recording.lacks), *no_steps)
            problems += [(cell.label, file, text, "") for text in texts]
    data = [cell for cell, _, _ in read]
    return Results(pd.DataFrame(rows), data, answers, pd.DataFrame(problems, columns=PROBLEMS))


def outcome_of(cell: CellData, step: Outcome | None, reason: str) -> tuple[str, str]:
    """The outcome of a cell as one of the room's words, and why."""
    result, recording = cell.result, cell.recording
    if result is not None and result.outcome == "oom":
        return "oom", result.reason
    if recording is not None and recording.steps:
        if recording.has_kernels:
            return "ok", ""
        on_cpu = result is not None and result.asked.device == "cpu"
        return "no_gpu_data", "a CPU run has no kernels" if on_cpu else "no kernels"
    if reason or recording is not None:
        return "unreadable", reason or NO_STEPS
    if step is None:
        return "missing", "no capture"
    if step.status is Status.skipped:
        return "skipped_estimate" if step.reason.startswith("skipped_estimate") else "missing", step.reason
    return ("failed" if step.status is Status.ok else step.status.value), step.reason or "no capture was left"


def planned(run: Run | None) -> list[CellData]:
    """Every cell that the run was to record, by the labels that the plan gave its steps."""
    labels = [record.step.labels for record in run.manifest.steps] if run else []
    kinds = {str(kind): kind for kind in TYPES}
    return [
        CellData(size=str(label["size"]), context=int(label["context"]), type=kinds[str(label["type"])])
        for label in labels
        if label.get("profiled")
    ]


def merged(cells: list[CellData], wanted: Sequence[CellData]) -> list[CellData]:
    """The recorded cells and those that were planned, in the order of the plan if there is one."""
    if not wanted:
        return cells
    by_name = {cell.name: cell for cell in cells}
    in_plan = [by_name.pop(cell.name, cell) for cell in wanted]
    return [*in_plan, *by_name.values()]
