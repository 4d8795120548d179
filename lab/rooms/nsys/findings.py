"""From a folder to findings: find the cells, read their captures, answer the questions, write the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pandas as pd

from lab.core.files import write_atomic
from lab.core.run import Run
from lab.core.step import Outcome, Status
from lab.errors import LabError, MissingError
from lab.recordings.capture import Capture
from lab.recordings.integrity.words import sentences
from lab.recordings.load import load_capture
from lab.recordings.processes import process_label, single_processes
from lab.recordings.projection import PhaseNames, project
from lab.rooms.nsys.analyze import tables_of
from lab.rooms.nsys.answers.answer import CellData
from lab.rooms.nsys.answers.questions import all_answers, answers_of_one, cell_parts
from lab.rooms.nsys.captures.stats.reports import write_reports
from lab.rooms.nsys.config import PART_TYPES, TYPES, Cell, ProfileType
from lab.rooms.nsys.flops import ModelSpec
from lab.rooms.nsys.layout import CellFiles, find_cells, published_name
from lab.rooms.nsys.recording import Recording, recording_of
from lab.rooms.nsys.report.page import Findings, report
from lab.rooms.nsys.report.tables import Results, cell_row, summary_text

PROBLEMS = ["cell", "file", "what", "fix"]
NO_STEPS = "the capture has no range `step_N`"
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

Keep = Callable[[CellFiles, Capture], None]


def analyse_nsys(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Read every capture below `folder`; tables, figures, summary, reports and page go to `out`.

    Raises MissingError without any cell.
    """
    paths: list[Path] = []

    def write_stats(files: CellFiles, capture: Capture) -> None:
        """Write nsys' own reports into the published tree; one without data is left out."""
        projection = project(capture, "nsys")
        for part_folder, base in dict.fromkeys(
            published_name(files.cell, part) for part in cell_parts(files.cell)
        ):
            paths.extend(
                write_reports(projection, REPORTS, out / TREE / "stats_reports" / part_folder, base)[0]
            )

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
    keep: Keep = lambda *_: None,
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
    outcomes = _outcomes(run)
    data: list[CellData] = []
    rows: list[dict[str, object]] = []
    problems: list[dict[str, str]] = []
    for number, files in enumerate(cells, start=1):
        for cell, reason in _read_cell(files, folder, problems, keep):
            data.append(cell)
            rows.append(cell_row(cell, *outcome_of(cell, outcomes.get(files.cell.name.lower()), reason)))
        progress(f"  {number} of {len(cells)}: {files.label}")
    return Results(pd.DataFrame(rows), data, all_answers(data), pd.DataFrame(problems, columns=PROBLEMS))


def results_of_file(
    path: Path, spec: ModelSpec | None, context: int, batch: int, names: PhaseNames | None = None
) -> Results:
    """One capture by itself, each process of it a cell; its phases determine the profile type.

    Raises what the reader raises.
    """
    data: list[CellData] = []
    problems: list[dict[str, str]] = []
    rows: list[dict[str, object]] = []
    for process, recording in _recordings_of(load_capture(path), names):
        phases = set(recording.ranges["name"])
        kind: ProfileType = "forward_backward" if "backward" in phases else "forward"
        cell = Cell(
            size=spec.name if spec else path.name,
            context=context,
            type="training" if "optimizer_step" in phases else kind,
            parts=tuple(PART_TYPES),
        )
        files = CellFiles(cell=cell, capture=path, spec=spec, batch=batch if spec else None)
        cell_data = _with_tables(files, process, recording)
        problems += _problems(cell_data, path.name, [])
        rows.append(cell_row(cell_data, *outcome_of(cell_data, None, "" if recording.steps else NO_STEPS)))
        data.append(cell_data)
    answers = sorted((answer for cell in data for answer in answers_of_one(cell)), key=lambda a: a.part)
    return Results(pd.DataFrame(rows), data, answers, pd.DataFrame(problems, columns=PROBLEMS))


def _recordings_of(capture: Capture, names: PhaseNames | None = None) -> list[tuple[str, Recording]]:
    """(what tells a process from the others, "" for the only one; its recording), for each process.

    Processes without a measured step are left out where another one has some.
    """
    names = names or PhaseNames()
    recordings = []
    for index, single in single_processes(capture).items():
        recording = recording_of(project(single, "full", names.pattern), names)
        label = process_label(single.processes[0], index)
        recordings.append((label, replace(recording, process_index=index)))
    recordings = [pair for pair in recordings if pair[1].steps] or recordings
    return recordings if len(recordings) > 1 else [("", recordings[0][1])]


def _with_tables(files: CellFiles, process: str, recording: Recording) -> CellData:
    """A cell per process of several: no table or figure may put two into one place."""
    tables = tables_of(recording, files.spec, files.batch, files.cell.context, files.dtype)
    if process:
        cell = msgspec.structs.replace(files.cell, size=f"{files.cell.size}, {process}")
        files = msgspec.structs.replace(files, cell=cell)
    return CellData(files, recording, tables)


def _problems(cell: CellData, file: str, reasons: Sequence[str]) -> list[dict[str, str]]:
    assert cell.recording is not None
    texts = (*cell.recording.problems, *sentences(cell.recording.lacks), *reasons)
    return [{"cell": cell.label, "file": file, "what": text, "fix": ""} for text in texts]


def _read_cell(
    files: CellFiles, folder: Path, problems: list[dict[str, str]], keep: Keep
) -> list[tuple[CellData, str]]:
    """The cell with its tables, per process, and the reason where it has none; adds to `problems`."""
    path = files.capture
    if path is None or (files.result is not None and files.result.outcome != "ok"):
        return [(CellData(files), "")]
    name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
    try:
        capture = load_capture(path)
        recordings = _recordings_of(capture)
        keep(files, capture)
    except LabError as error:
        problem = {"cell": files.label, "file": name, "what": error.problem, "fix": error.fix or ""}
        problems.append(problem)
        return [(CellData(files), error.problem)]
    cells = []
    for process, recording in recordings:
        cell = _with_tables(files, process, recording)
        reason = "" if recording.steps else f"no measured steps: {NO_STEPS}"
        problems += _problems(cell, name, [reason] if reason else [])
        cells.append((cell, reason))
    return cells


def outcome_of(cell: CellData, step: Outcome | None, reason: str) -> tuple[str, str]:
    """The outcome of a cell as one of the room's words, and why."""
    result = cell.files.result
    if result is not None and result.outcome == "oom":
        return "oom", result.reason
    if cell.recording is not None and cell.recording.steps:
        if cell.recording.has_kernels:
            return "ok", ""
        on_cpu = result is not None and result.asked.device == "cpu"
        return "no_gpu_data", "a CPU run has no kernels" if on_cpu else "no kernels"
    if cell.files.capture is not None and reason:
        return "unreadable", reason
    if step is None:
        return "missing", "no capture"
    if step.status is Status.skipped:
        return "skipped_estimate" if step.reason.startswith("skipped_estimate") else "missing", step.reason
    return ("failed" if step.status is Status.ok else step.status.value), step.reason or "no capture was left"


def planned(run: Run | None) -> list[Cell]:
    """Every cell that the run was to record, by the labels that the plan gave its steps."""
    labels = [record.step.labels for record in run.manifest.steps] if run else []
    kinds = {str(kind): kind for kind in TYPES}
    return [
        Cell(size=str(label["size"]), context=int(label["context"]), type=kinds[str(label["type"])])
        for label in labels
        if label.get("profiled")
    ]


def _outcomes(run: Run | None) -> dict[str, Outcome]:
    """The outcome of every step that has ended, by its name."""
    records = run.manifest.steps if run else []
    return {record.step.name: record.outcome for record in records if record.outcome is not None}


def merged(cells: list[CellFiles], wanted: Sequence[Cell]) -> list[CellFiles]:
    """The recorded cells and those that were planned, in the order of the plan if there is one."""
    if not wanted:
        return cells
    by_name = {files.cell.name: files for files in cells}
    in_plan = [by_name.pop(cell.name, CellFiles(cell=cell)) for cell in wanted]
    return [*in_plan, *by_name.values()]
