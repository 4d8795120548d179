"""Some sections of an analysis, each in a folder of its own, instead of what a room does with the whole."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.core.plan import Findings
from lab.core.run import Run
from lab.errors import BadDataError, LabError, MissingError, StepFailed, UsageError

Analyse = Callable[[Path, Path, "Run | None", Callable[[str], None]], Findings]
NOT_HERE = (BadDataError, MissingError, StepFailed, UsageError)
SEVERITY = ("ok", "warn", "fail")


@dataclass(frozen=True)
class Sections:
    """modules maps the name of each wanted section to the room that has its analyse_NAME()."""

    modules: Mapping[str, str]

    def analyse(self, folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
        """Join the findings of all sections; one that the input cannot have is in `lacking`.

        Raises the first section's error where no section can be had.
        """
        findings: dict[str, Findings] = {}
        errors: dict[str, LabError] = {}
        for name, module in self.modules.items():
            analyse: Analyse = getattr(importlib.import_module(module), f"analyse_{name}")
            try:
                findings[name] = analyse(folder, out, run, progress)
            except NOT_HERE as error:
                errors[name] = error
        if not findings:
            raise next(iter(errors.values()))
        parts = list(findings.values())
        return Findings(
            [sentence for part in parts for sentence in part.verdict],
            max((part.status for part in parts), key=SEVERITY.index),
            [path for part in parts for path in part.files],
            "\n\n".join(part.terminal.rstrip("\n") for part in parts),
            lacking=[
                *(f"{name}: {text}" for name, part in findings.items() for text in part.lacking),
                *(f"{name}: {error.problem}" for name, error in errors.items()),
            ],
            incomplete=list(dict.fromkeys(text for part in parts for text in part.incomplete)),
        )
