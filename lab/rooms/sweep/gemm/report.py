"""What a step of the pipeline comes back with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Report:
    """What one step of the pipeline wrote, and what it could not.

    missing: what was requested or found and is not in the result (exit code 1). problems: oddities of the
    input. incomplete: what the recordings lack, as far as a step tells it apart (for --require). findings:
    what the figures say, most important first.
    """

    files: list[Path] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)
