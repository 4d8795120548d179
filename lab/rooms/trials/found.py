"""What each of the room's analyses comes back with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.report.page import Status


@dataclass(frozen=True)
class Findings:
    """What the analysis comes back with; `answer` joins the JSON on stdout."""

    verdict: list[str]
    status: Status
    files: list[Path]
    terminal: str
    lacking: list[str]
    answer: dict[str, Any] = field(default_factory=dict)
