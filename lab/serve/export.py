"""Write runs and recordings in the formats of other tools: Perfetto, Chrome, spreadsheets, Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from lab.core import findings as findings_file
from lab.core import manifest as manifests
from lab.core.files import make_folder, replacing
from lab.core.findings import FINDINGS
from lab.core.run import MANIFEST
from lab.core.words import ranks_text
from lab.errors import LabError, MissingError, not_here
from lab.recordings.capture import Capture
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import holes
from lab.recordings.load import load_capture
from lab.recordings.merge import merge_captures, read_ranks
from lab.report.excel import write_workbook
from lab.serve.rows import row_of
from lab.serve.sql.tables import read_table
from lab.serve.walk import recordings_below

LEFT_OUT, LACKS, ABSENT = "left out:", "missing from the recording", "no recording of"
MISSING = (LEFT_OUT, LACKS, ABSENT)  # prefixes of notes that make an export incomplete


def write_perfetto(paths: Sequence[Path], target: Path) -> list[str]:
    """All ranks of these recordings, of any profiler, in one gzipped JSON; returns what is not in it.

    Raises what the reader raises for a single recording, BadDataError where none of several can be read.
    """
    ranks = read_ranks([(None, path) for path in paths])
    merge_captures(ranks.traces, target, offsets_ns=ranks.offsets_ns, absent=ranks.absent)
    notes = [f"{LEFT_OUT} {text}" for text in ranks.left_out] + [*ranks.unnamed, *ranks.odd]
    notes += [f"{LACKS} {text}" for text in ranks.torn]
    if ranks.absent:
        notes.append(f"{ABSENT} {ranks_text(ranks.absent, limit=16)}")
    return list(dict.fromkeys(notes))


def notes_of(path: Path, recording: Capture) -> list[str]:
    """Sentences on what its reader met in a recording, and on what is missing from it."""
    missing = sentences(holes(recording.lacks))
    return [f"{path.name}: {text}" for text in recording.problems] + [
        f"{LACKS} {path.name}: {text}" for text in missing
    ]


MOST_ROWS = (1 << 20) - 1  # of a sheet, below its heading
TABLES = ("ops", "api", "ranges", "sync")
TEXTS = {
    "name_id": "name",
    "text_id": "text",
    "dims_id": "dims",
    "types_id": "types",
    "domain": "domain_name",
}


def write_xlsx(run: Path, target: Path) -> list[str]:
    """Steps, findings and every tables/*.csv of a run as sheets, or the operations, calls, ranges and waits
    of a recording; returns sentences about what is missing."""
    notes: list[str] = []
    if run.is_file():
        sheets = _of_recording(run, notes)
    else:
        sheets = _about(run, notes)
        for name, table in _tables(run, notes).items():
            sheets[name] = table.to_pandas()
    if not sheets:
        raise MissingError(
            "neither a manifest nor tables", location=run, fix="name the folder of a run, or a recording"
        )
    write_workbook(sheets, target)
    return notes


def _of_recording(path: Path, notes: list[str]) -> dict[str, pd.DataFrame]:
    capture = load_capture(path)
    notes += notes_of(path, capture)
    sheets = {}
    for name in TABLES:
        frame = _columns(capture, name).to_pandas()
        if len(frame) > MOST_ROWS:
            notes.append(
                f"{LEFT_OUT} {path.name}: {len(frame) - MOST_ROWS:,} rows of {name}; parquet has all"
            )
        if len(frame):
            sheets[name] = frame[:MOST_ROWS]
    return sheets


def write_parquet(run: Path, folder: Path) -> tuple[list[Path], list[str]]:
    """tables/*.csv as Parquet, and of each recording its operations, calls, ranges and waits."""
    notes: list[str] = []
    written = []
    for name, table in _tables(run, notes).items():
        written.append(_write(table, folder / f"{name}.parquet"))
    for group, paths in recordings_below(run).items():
        for path in paths:
            name = path.name.split(".", 1)[0]
            stem = f"{group}_{name}" if len(paths) == 1 else f"{group}_{path.parent.name}_{name}"
            try:
                capture = load_capture(path)
            except LabError as error:
                notes.append(f"left out: {path.name}: {error.problem}")
                continue
            notes += notes_of(path, capture)
            written += [
                _write(_columns(capture, table), folder / f"{safe(stem)}_{table}.parquet") for table in TABLES
            ]
    return written, notes


def safe(name: str) -> str:
    """A name that any file system and shell takes."""
    plain = "".join(one if one.isascii() and (one.isalnum() or one in "._-") else "_" for one in name)
    return plain.strip("._")[-120:] or "export"


def _columns(capture: Capture, table: str) -> pa.Table:
    """A capture's table with texts in place of their numbers."""
    columns: dict[str, Any] = {}
    strings = pa.array(capture.strings, type=pa.string())
    for name, values in getattr(capture, table).as_dict().items():
        if name in TEXTS:
            place = pa.array(values.astype("int32"), mask=values < 0)
            columns[TEXTS[name]] = pa.DictionaryArray.from_arrays(place, strings)
        else:
            columns[name] = values
    return pa.table(columns)


def _tables(run: Path, notes: list[str]) -> dict[str, pa.Table]:
    tables = {}
    for path in sorted((run / "tables").glob("*")) if run.is_dir() else ():
        if path.suffix not in (".csv", ".parquet") or path.name.startswith("."):
            continue
        try:
            tables[path.stem] = read_table(run, f"tables/{path.name}")
        except (LabError, pa.ArrowException, OSError) as error:
            notes.append(f"left out: tables/{path.name}: {str(error).splitlines()[0]}")
    return tables


def _about(run: Path, notes: list[str]) -> dict[str, pd.DataFrame]:
    sheets: dict[str, pd.DataFrame] = {}
    try:
        findings = findings_file.load(run / FINDINGS)
        rows = [
            (row.kind, row.title, row.text, row.value, row.unit, row.evidence[0].file)
            for row in findings.findings
        ]
        sheets["findings"] = pd.DataFrame(rows, columns=["kind", "title", "text", "value", "unit", "file"])
    except LabError as error:
        notes.append(f"no findings: {error.problem}")
        findings = None
    try:
        row = row_of(run.name, manifests.load(run / MANIFEST), findings)
        steps = [(step.name, step.status, step.seconds, step.attempts, step.reason) for step in row.steps]
        sheets["steps"] = pd.DataFrame(steps, columns=["step", "status", "seconds", "attempts", "reason"])
    except LabError as error:
        notes.append(f"no steps: {error.problem}")
    return sheets


def _write(table: pa.Table, path: Path) -> Path:
    with replacing(path) as file:
        pyarrow.parquet.write_table(table, file, compression="zstd")
    return path


def export_run(run: Path, form: str, out: Path) -> tuple[list[Path], list[str]]:
    """The files written into `out`, and sentences about what is not in them.

    Raises MissingError where there is nothing to export, and what a reader raises for a single recording.
    """
    if not run.exists():
        raise not_here("no such run or recording", run)
    make_folder(out)
    place = run.resolve().name
    name = safe(place.split(".", 1)[0] if run.is_file() else place)
    if form == "xlsx":
        target = out / f"{name}.xlsx"
        notes = write_xlsx(run, target)
        return ([target] if target.exists() else []), notes
    if form == "parquet":
        written, notes = write_parquet(run, make_folder(out / name))
        if not written:
            raise MissingError(
                "neither tables nor recordings", location=run, fix="; ".join(notes[:3]) or None
            )
        return written, notes
    return _timelines(run, out, name)


def _timelines(run: Path, out: Path, name: str) -> tuple[list[Path], list[str]]:
    groups = recordings_below(run)
    if not groups:
        raise MissingError(
            "no recording in this run", location=run, fix="lab inspect shows what a folder contains"
        )
    written: list[Path] = []
    notes: list[str] = []
    for group, paths in groups.items():
        stem = name if run.is_file() else f"{name}_{safe(group)}" if group != "." else name
        target = out / f"{stem}.json.gz"
        try:
            left = write_perfetto(paths, target)
            written.append(target)
        except LabError as error:
            if len(groups) == 1:
                raise
            left = [f"left out: {error.problem}"]
        notes += [with_place(text, group) for text in left]
    return written, notes


def with_place(note: str, place: str) -> str:
    """Put the place into a note, behind its prefix."""
    prefix = next((text for text in MISSING if note.startswith(text)), "")
    return f"{prefix} {place}: {note[len(prefix) :].strip()}" if prefix else f"{place}: {note}"
