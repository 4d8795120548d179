"""Evidence of one experiment: the Python level's result, nixnan's log, and the status of its process.

`gather` fills it from a run of lab or from the published layout. A result that cannot be read
is an experiment with its reason.
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
from lab.rooms.nan.nixnan.log import Log, totals
from lab.rooms.nan.nixnan.reading.parse import parse

Progress = Callable[[str], None]
HALF_MAX = 65504.0
LARGEST = {"float16": HALF_MAX, "bfloat16": 3.3895e38, "float32": 3.4028e38}


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
    def watch(self) -> dict[str, Any]:
        """What the modules did; {} where nothing was watched."""
        return self._part("watch")

    @property
    def birth(self) -> dict[str, Any]:
        """The first birth of a bad number that the watch saw; {} without one."""
        return self.watch.get("first") or {}

    @property
    def counts(self) -> dict[str, Any]:
        """What a published result holds; {} for one of lab."""
        return self._part("published")

    @property
    def logits(self) -> dict[str, Any]:
        return self._part("logits")

    @property
    def effective(self) -> dict[str, Any]:
        """What ran, read off the model."""
        return self._part("effective")

    def _part(self, name: str) -> dict[str, Any]:
        part: dict[str, Any] = (self.result or {}).get(name) or {}
        return part

    @property
    def compared(self) -> bool:
        return self.status == "ok"


def baseline_of(evidence: Sequence[Evidence]) -> Evidence | None:
    return next((row for row in evidence if row.experiment == "baseline"), None)


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


def reported(experiment: Evidence, types: Sequence[str], kind: str) -> tuple[int, int] | None:
    """(unique, repeats) of nixnan's own report; None without a report."""
    if experiment.log is None or experiment.log.report is None:
        return None
    cells = [experiment.log.report.get(name, {}).get(kind) for name in types]
    counted_cells = [cell for cell in cells if cell]
    return sum(cell["unique"] for cell in counted_cells), sum(cell["repeats"] or 0 for cell in counted_cells)


def bad_leaves(experiment: Evidence) -> int:
    return sum(step["bad_leaves"] for step in experiment.watch.get("steps", ()))


def subnormals(experiment: Evidence) -> bool:
    any_subnormal = any(step["subnormal"] > 0 for step in experiment.watch.get("steps", ()))
    in_log = experiment.log is not None and totals(experiment.log)["subnormal"] > 0
    return any_subnormal or in_log


def text_of(experiment: Evidence | None) -> str | None:
    texts = (experiment.result or {}).get("text") if experiment else None
    return "\n".join(texts) if texts else None
