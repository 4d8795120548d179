"""File names that several modules use, and how results are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from lab.core.step import Status
from lab.errors import BadDataError

COMPARISON = "tables/compare.json"
HEADS = {"pytorch_crf": "pytorch-crf", "linear_crf_triton": "linear", "semi_crf": "semicrf"}


def read_json(path: Path) -> Any:
    """Raises BadDataError naming the file."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise BadDataError(f"cannot be read as JSON: {error}", location=path) from error


def outcome_of(record: Any) -> tuple[str, str]:
    """(status, reason) of a step's record in the manifest."""
    if record.outcome is None:
        return "missing", "did not run"
    return {Status.ok: "ok", Status.skipped: "skipped"}.get(
        record.outcome.status, "failed"
    ), record.outcome.reason
