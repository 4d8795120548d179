"""What an analysis comes back with where a step left nothing to analyse."""

from __future__ import annotations

from pathlib import Path

from lab.core.plan import Findings


def no_findings(sentence: str, path: Path) -> Findings:
    """The findings of a step that left no result; the step's own failure says why."""
    return Findings([sentence], "fail", [], sentence, [f"{sentence}: {path.name} is missing"])
