"""The rows of a diagnosis and of a check, as their workloads wrote them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lab.core.run import Run
from lab.rooms.semicrf.analyze.outcome import outcome_of
from lab.rooms.semicrf.layout import read_json


@dataclass
class Examination:
    """A diagnosis' rows; `missing`: steps without a result, in sentences."""

    cells: list[dict[str, Any]] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)
    reproducer: dict[str, Any] | None = None
    reproducer_folder: str = ""
    fixed_length: int | None = None
    tested: str = ""
    reference: str = ""
    device: str = "cpu"
    missing: list[str] = field(default_factory=list)


def read_examination(run: Run) -> Examination:
    """All parts of a run of `diagnose`; the backends by the names of what ran."""
    config = run.manifest.config
    found = Examination(tested=str(config["tested"]), reference=str(config.get("reference", "")))
    for record in run.manifest.steps:
        status, reason = outcome_of(record)
        if status != "ok":
            found.missing.append(f"{record.step.name}: {reason}")
            continue
        part = str(record.step.labels["part"])
        content = read_json(run.folder(record.step) / f"{part}.json")
        found.tested = content.get("tested", found.tested)
        found.reference = content.get("reference", found.reference)
        found.device = content.get("device", found.device)
        if "cells" in content:
            found.cells += content["cells"]
            found.fixed_length = content["fixed_length"]
        else:
            found.probes = content["probes"]
            found.reproducer, found.reproducer_folder = content["reproducer"], record.step.folder
    return found


def read_checks(run: Run) -> tuple[pd.DataFrame, list[str]]:
    """A row per check of every backend, and what is missing; a step that failed is one row."""
    rows, missing = [], []
    for record in run.manifest.steps:
        status, reason = outcome_of(record)
        backend = str(record.step.labels["backend"])
        if status != "ok":
            missing.append(f"{record.step.name}: {reason}")
            rows.append(_failed_step(backend, reason))
            continue
        said = read_json(run.folder(record.step) / "checks.json")
        ran = said.get("backend", backend)  # files of before this was noted name what was asked for
        label = backend if ran == backend else f"{backend} ({ran})"
        rows += [{"backend": label, **row} for row in said["checks"]]
    return pd.DataFrame(rows), missing


def _failed_step(backend: str, reason: str) -> dict[str, Any]:
    nothing = {"shape": "", "dtype": "", "value": None, "limit": None}
    return {"backend": backend, "check": "the step itself", **nothing, "verdict": "fail", "text": reason}
