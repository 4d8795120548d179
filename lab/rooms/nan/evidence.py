"""Evidence of one experiment: the Python level's result, nixnan's log, and the status of its process.

`gather` fills it from a run of lab, `published` from the published layout. A result that cannot be read is an
experiment with its reason, never a hole.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lab.errors import BadDataError, LabError
from lab.rooms.nan.nixnan.log import Log
from lab.rooms.nan.nixnan.reading.parse import parse

Progress = Callable[[str], None]


@dataclass
class Evidence:
    """All there is of one experiment.

    status: ok, failed, oom, timeout, interrupted, missing, skipped, broken, invalid (the change touched
    nothing) or no-effect (it moved no logit). Only `ok` is compared.
    """

    experiment: str
    label: str
    status: str = "ok"
    reason: str = ""
    result: dict[str, Any] | None = None
    result_file: str = ""
    log: Log | None = None
    log_files: list[str] = field(default_factory=list)
    log_error: str = ""
    folder: Path | None = None
    published: bool = False
    inventory: bool = False  # nixnan only listed the kernels
    only_kernels: tuple[str, ...] = ()  # all that it was told to look at, by short names
    not_kernels: tuple[str, ...] = ()  # what it was told to leave alone

    @property
    def watch(self) -> dict[str, Any] | None:
        return (self.result or {}).get("watch")

    @property
    def compared(self) -> bool:
        return self.status == "ok"


def baseline_of(evidence: Sequence[Evidence]) -> Evidence | None:
    return next((evidence_row for evidence_row in evidence if evidence_row.experiment == "baseline"), None)


def read_log(experiment: Evidence, path: Path, root: Path, progress: Progress) -> None:
    """Read the log into the evidence; why it cannot be read goes to `log_error`."""
    progress(f"  nixnan log of {experiment.label}")
    experiment.log_files = [str(path.relative_to(root))]
    try:
        experiment.log = parse(path)
    except LabError as error:
        experiment.log_error = error.problem


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(read_bytes(path))
    except msgspec.DecodeError as error:
        raise BadDataError(f"{path.name} cannot be read: {error}", location=path) from error
    if not isinstance(value, dict):
        raise BadDataError(f"{path.name} is not a JSON object", location=path)
    return value


def read_bytes(path: Path) -> bytes:
    """A file's bytes, inflated if its name ends with .gz. Raises BadDataError for a broken one."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise BadDataError(f"{path.name} cannot be read: {error}", location=path) from error
