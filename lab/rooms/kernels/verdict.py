"""What one analysis found, as the driver shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lab.report.page import Status


@dataclass(frozen=True)
class Findings:
    """The protocol of lab.rooms.Findings: sentences, status, files, and what was asked for but is missing;
    incomplete has a sentence for everything that the recordings lack."""

    verdict: list[str]
    status: Status
    files: list[Path]
    terminal: str
    lacking: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)


def no_findings(sentence: str, path: Path) -> Findings:
    """The findings of a step that left no result; the step's own failure says why."""
    return Findings([sentence], "fail", [], sentence, [f"{sentence}: {path.name} is missing"])
