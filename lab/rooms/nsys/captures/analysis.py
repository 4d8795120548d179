"""`lab analyze` of a recording, or of a folder of recordings, that no experiment of lab made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lab.core.files import make_folder
from lab.core.plan import Findings
from lab.core.words import plural, printable
from lab.errors import BadDataError, LabError, MissingError
from lab.recordings.capture import Capture
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import counted, holes
from lab.recordings.load import format_of, is_recording, load_capture, named_as_recording
from lab.recordings.pool import raise_if_none_read
from lab.recordings.processes import with_processes
from lab.report.page import write_page
from lab.report.parts import Files, Page, Section, Status, Table
from lab.report.tables import write_csv
from lab.rooms.nsys.captures.metrics import FORMAT, NO_TIMELINE, write_metrics
from lab.rooms.nsys.captures.page import NO_KERNELS, Written, write_recording
from lab.rooms.nsys.captures.summary import Summary, summaries
from lab.rooms.nsys.captures.summary_text import summaries_text
from lab.terminal.part import PartOptions, phase_names, projections

MOST_FILES = 256  # of a folder
_SMALL_JSON = 1 << 16  # bytes below which a JSON file is searched for events before it counts as a trace


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
        if path.name.startswith(".") or _other_json(path):
            continue
        try:
            if is_recording(path) if path.is_dir() else _reads(path):
                paths.append(path)
        except LabError:
            if named_as_recording(path):
                paths.append(path)
    return paths


def _reads(path: Path) -> bool:
    kind = format_of(path)
    return kind.load is not None or kind.name == FORMAT


def _other_json(path: Path) -> bool:
    """A small JSON file without events: a manifest, settings, results."""
    if path.suffix != ".json" or named_as_recording(path):
        return False
    if not path.is_file() or path.stat().st_size > _SMALL_JSON:
        return False
    text = path.read_bytes()
    return b"traceEvents" not in text and b"rocprofiler-sdk-tool" not in text and text.lstrip()[:1] == b"{"


def analyse_recordings(
    path: Path, out: Path, progress: Callable[[str], None], *, need_phases: bool = False
) -> Findings:
    """Page, tables and summary of one recording in `out`; of a folder of them one folder below it for each.

    Raises what the reader raises for one recording; of a folder, a recording that cannot be read is named in
    `lacking` and leaves the others intact. need_phases: a recording without phases is an error too
    (MissingError).
    """
    if not path.is_dir() or is_recording(path):
        return _one(path, out, need_phases=need_phases)
    paths = recordings_in(path)
    if len(paths) > MOST_FILES:
        raise MissingError(f"{len(paths)} recordings in one folder: more than {MOST_FILES}", location=path)
    return _several(path, paths, out, progress, need_phases=need_phases)


def _one(path: Path, out: Path, *, need_phases: bool) -> Findings:
    if format_of(path).name == FORMAT:
        if need_phases:
            raise MissingError("counters without a timeline have no phases", location=path)
        metrics, text = write_metrics(path, out)
        return Findings(metrics.verdict, metrics.status, metrics.files, text, incomplete=[NO_TIMELINE])
    capture = with_processes(load_capture(path))
    if not any(map(len, (capture.ops, capture.api, capture.ranges, capture.sync, capture.counters))):
        raise BadDataError(
            "the recording holds no events",
            location=path,
            fix="record while the program works, and stop the profiler before it ends",
        )
    per_process = _summaries(capture)
    if need_phases and per_process and not any(one.steps or len(one.phases) > 1 for one in per_process):
        raise MissingError(
            "no step and no range of the program is recorded, so there are no phases",
            location=path,
            fix="record with NVTX or rocTX ranges (--trace=cuda,nvtx; --marker-trace) or record_function",
        )
    make_folder(out)
    written = write_recording(capture, per_process, out)
    lacking = sentences(holes(capture.lacks), processes=len(capture.processes))
    if NO_KERNELS in written.unknown:
        lacking.append(NO_KERNELS)
    return Findings(
        verdict=written.verdict,
        status=written.status,
        files=written.files,
        terminal=_terminal(per_process, written),
        lacking=lacking,
        incomplete=sentences(counted(capture.lacks), processes=len(capture.processes)),
    )


def _summaries(capture: Capture) -> list[Summary]:
    """One summary per process with GPU work."""
    if not len(capture.ops):
        return []
    names = phase_names(())
    parts = projections(capture, "full", names, PartOptions(), captures=())
    return summaries([(index, one) for index, one in parts if len(one.capture.ops)], names.pattern)


def _terminal(per_process: list[Summary], written: Written) -> str:
    text = summaries_text(per_process) if per_process else "\n".join(written.verdict) + "\n"
    unknown = "".join(f"unknown: {one}\n" for one in written.unknown) if per_process else ""
    return f"{printable(text)}{unknown}{written.files[0]}"


def _several(
    path: Path, paths: list[Path], out: Path, progress: Callable[[str], None], *, need_phases: bool
) -> Findings:
    """Each recording in a folder of its own, and a page that lists them."""
    import pandas as pd

    files: list[Path] = []
    lacking: list[str] = []
    incomplete: list[str] = []
    rows, entries = [], []
    results: list[Findings | LabError] = []
    for index, one in enumerate(paths, start=1):
        progress(f"{index} of {len(paths)}: {one.name}")
        try:
            done = _one(one, out / one.name, need_phases=need_phases)
        except LabError as error:
            results.append(error)
            lacking.append(f"{printable(one.name)}: {error.problem}")
            rows.append({"recording": one.name, "verdict": "unreadable", "what": error.problem})
            continue
        results.append(done)
        files += done.files
        lacking += [f"{printable(one.name)}: {text}" for text in done.lacking]
        incomplete += [f"{printable(one.name)}: {text}" for text in done.incomplete]
        entries.append((f"{one.name}/report.html", one.name))
        rows.append({"recording": one.name, "verdict": done.status, "what": done.verdict[0]})
    raise_if_none_read(results)
    table = pd.DataFrame(rows)
    status: Status = "warn" if lacking or incomplete else "ok"
    verdict = [f"{plural(len(entries), 'recording')} of {len(paths)} analysed."]
    csv = write_csv(table, out / "tables" / "recordings.csv")
    page = Page(
        title=path.resolve().name,
        question="Which recordings are here, and are they complete?",
        verdict=verdict,
        status=status,
        sections=[
            Section(
                "Recordings", [Files("A page each", entries), Table(table, "All", "tables/recordings.csv")]
            )
        ],
        room="recording",
    )
    files = [write_page(page, out / "report.html"), csv, *files]
    lines = [f"{row['recording']}: {row['verdict']}: {row['what']}" for row in rows]
    terminal = printable("\n".join([*verdict, *lines])) + f"\n{files[0]}"
    return Findings(verdict, status, files, terminal, lacking, incomplete)
