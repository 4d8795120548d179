"""`lab analyze` of a recording, or of a folder of recordings, that no experiment of lab made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from lab.core.files import make_folder
from lab.core.plan import Findings
from lab.core.words import plural, printable
from lab.errors import BadDataError, LabError, MissingError
from lab.recordings.load import format_of, is_recording, load_capture, named_as_recording
from lab.recordings.pool import raise_if_none_read
from lab.recordings.processes import with_processes
from lab.report.page import write_page
from lab.report.parts import Block, Files, Page, Section, Status, Table
from lab.report.tables import write_csv
from lab.rooms.nsys.captures.page import write_recording
from lab.rooms.nsys.captures.summary import summaries
from lab.terminal.part import PartOptions, phase_names, projections

MAX_FILES = 256  # of a folder
_SMALL_JSON = 1 << 16  # bytes below which a JSON file is searched for events before it counts as a trace
_MARKS = (b"traceEvents", b"rocprofiler-sdk-tool")


def holds_recordings(path: Path) -> bool:
    """Whether `path` is a recording of any format, or a folder with at least one."""
    if path.is_dir():
        return is_recording(path) or bool(recordings_in(path))
    try:
        format_of(path)
    except BadDataError:
        return False
    return True


def recordings_in(folder: Path) -> list[Path]:
    """Files and folders directly in `folder` that are recordings, by name.

    Those that are named as one and cannot be read are among them.
    """
    paths = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or _is_other_json(path):
            continue
        try:
            if is_recording(path) if path.is_dir() else format_of(path).load:
                paths.append(path)
        except LabError:
            if named_as_recording(path):
                paths.append(path)
    return paths


def _is_other_json(path: Path) -> bool:
    """A small JSON file without events: a manifest, settings, results."""
    if path.suffix != ".json" or named_as_recording(path):
        return False
    if not path.is_file() or path.stat().st_size > _SMALL_JSON:
        return False
    text = path.read_bytes()
    return not any(mark in text for mark in _MARKS) and text.lstrip()[:1] == b"{"


def analyse_recordings(
    path: Path, out: Path, progress: Callable[[str], None], *, need_phases: bool = False
) -> Findings:
    """Page, tables and summary of one recording in `out`; of a folder of them one folder below it for each.

    Raises what the reader raises for one recording; of a folder, a recording that cannot be read is named in
    `lacking` and leaves the others intact. need_phases: a recording without phases is an error too
    (MissingError).
    """
    if not path.is_dir() or is_recording(path):
        return _analyse_recording(path, out, need_phases=need_phases)
    paths = recordings_in(path)
    if len(paths) > MAX_FILES:
        raise MissingError(f"{len(paths)} recordings in one folder: more than {MAX_FILES}", location=path)
    results: dict[str, Findings | LabError] = {}
    for index, file in enumerate(paths, start=1):
        progress(f"{index} of {len(paths)}: {file.name}")
        try:
            results[file.name] = _analyse_recording(file, out / file.name, need_phases=need_phases)
        except LabError as error:
            results[file.name] = error
    raise_if_none_read(list(results.values()))
    return _findings_of_folder(path, results, out)


def _analyse_recording(path: Path, out: Path, *, need_phases: bool) -> Findings:
    capture = with_processes(load_capture(path))
    if not any(map(len, (capture.ops, capture.api, capture.ranges, capture.sync))):
        raise BadDataError(
            "the recording has no events",
            location=path,
            fix="record while the program works, and stop the profiler before it ends",
        )
    names = phase_names(())
    parts = projections(capture, "full", names, PartOptions(), captures=()) if len(capture.ops) else []
    per_process = summaries([(index, part) for index, part in parts if len(part.capture.ops)], names.pattern)
    has_phases = any(summary.steps or len(summary.phases) > 1 for summary in per_process)
    if need_phases and per_process and not has_phases:
        raise MissingError(
            "no step and no range of the program is recorded, so phases are unknown",
            location=path,
            fix="record with NVTX or rocTX ranges (--trace=cuda,nvtx; --marker-trace) or record_function",
        )
    make_folder(out)
    return write_recording(capture, per_process, out)


def _findings_of_folder(folder: Path, results: dict[str, Findings | LabError], out: Path) -> Findings:
    """The findings of every recording, and a page that lists them."""
    rows, entries = [], []
    files, lacking, incomplete = list[Path](), list[str](), list[str]()
    for name, findings in results.items():
        if isinstance(findings, LabError):
            lacking.append(f"{printable(name)}: {findings.problem}")
            rows.append((name, "unreadable", findings.problem))
            continue
        files += findings.files
        lacking += [f"{printable(name)}: {text}" for text in findings.lacking]
        incomplete += [f"{printable(name)}: {text}" for text in findings.incomplete]
        entries.append((f"{name}/report.html", name))
        rows.append((name, findings.status, findings.verdict[0]))
    table = pd.DataFrame(rows, columns=["recording", "verdict", "what"])
    status: Status = "warn" if lacking or incomplete else "ok"
    verdict = [f"{plural(len(entries), 'recording')} of {len(results)} analysed."]
    csv = write_csv(table, out / "tables" / "recordings.csv")
    blocks: list[Block] = [Files("A page each", entries), Table(table, "All", "tables/recordings.csv")]
    page = Page(
        title=folder.resolve().name,
        question="Which recordings are here, and are they complete?",
        verdict=verdict,
        status=status,
        sections=[Section("Recordings", blocks)],
        room="recording",
    )
    files = [write_page(page, out / "report.html"), csv, *files]
    terminal = printable("\n".join([*verdict, *map(": ".join, rows)])) + f"\n{files[0]}"
    return Findings(verdict, status, files, terminal, lacking, incomplete)
