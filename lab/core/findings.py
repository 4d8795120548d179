"""findings.json beside a report: its verdict, figures and what they rest on, typed, for machines to read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from lab.core.files import read_json, write_atomic
from lab.errors import BadDataError

FINDINGS = "findings.json"
SCHEMA_VERSION = 1
MOST_BYTES = 16 << 20


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a finding rests on: a file relative to the report, and in it a row where that is known.

    row counts the data rows of a CSV from 0; None: no single row holds the value, the whole file does.
    """

    file: str
    sha256: str
    row: int | None = None
    columns: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence of the verdict, or a figure: `text` as the page shows it, `value` where it is a number."""

    id: str
    kind: Literal["verdict", "figure"]
    severity: Literal["info", "warning", "critical"]
    title: str
    text: str
    value: float | None = None
    unit: str = ""
    note: str = ""
    evidence: Annotated[tuple[Evidence, ...], msgspec.Meta(min_length=1)]


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """One report's findings. lacking is None until the analysis has said what it could not read."""

    schema_version: int = SCHEMA_VERSION
    producer: str
    written_utc: str
    run: str = ""
    room: str = ""
    kind: str = "measured"
    status: Literal["ok", "warn", "fail"]
    question: str = ""
    findings: tuple[Finding, ...] = ()
    lacking: tuple[str, ...] | None = None

    @property
    def verdict(self) -> list[str]:
        return [finding.text for finding in self.findings if finding.kind == "verdict"]


def save(findings: Findings, path: Path) -> Path:
    write_atomic(path, msgspec.json.format(msgspec.json.encode(findings), indent=1) + b"\n")
    return path


def load(path: Path) -> Findings:
    """Raises MissingError without the file; BadDataError if it is too large or does not fit the schema."""
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise BadDataError(f"the findings have more than {MOST_BYTES} bytes", location=path)
    return read_json(path, Findings, "the findings", version=SCHEMA_VERSION)


def note_lacking(folder: Path, lacking: list[str]) -> None:
    """Add to the findings in `folder`, if there are any, what the analysis could not read."""
    path = folder / FINDINGS
    if path.is_file():
        save(msgspec.structs.replace(load(path), lacking=tuple(lacking)), path)
