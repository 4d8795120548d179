"""A run's tables as one workbook or as Parquet files, and recordings' columns as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from lab.core import findings as findings_file
from lab.core import manifest as manifests
from lab.core.files import replacing
from lab.core.findings import FINDINGS
from lab.core.run import MANIFEST
from lab.errors import LabError, MissingError
from lab.recordings.capture import Capture
from lab.recordings.load import load_capture
from lab.report.excel import write_workbook
from lab.serve.export.timelines import LEFT_OUT, notes_of
from lab.serve.rows import row_of
from lab.serve.sql.tables import read_table
from lab.serve.walk import recordings_below

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
