"""How a step ended, as the tables of this room name it."""

from __future__ import annotations

from typing import Any

from lab.core.step import Status

WORDS = {Status.ok: "ok", Status.skipped: "skipped"}


def outcome_of(record: Any) -> tuple[str, str]:
    """(status, reason) of a step's record in the manifest."""
    if record.outcome is None:
        return "missing", "did not run"
    return WORDS.get(record.outcome.status, "failed"), record.outcome.reason
