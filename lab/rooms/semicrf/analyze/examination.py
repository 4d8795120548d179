"""The rows of a diagnosis and of a check, as their workloads wrote them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lab.core.run import Run
from lab.rooms.semicrf.layout import outcome_of, read_json


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
    rows = Examination(tested=str(config["tested"]), reference=str(config.get("reference", "")))
    for record in run.manifest.steps:
        status, reason = outcome_of(record)
        if status != "ok":
            rows.missing.append(f"{record.step.name}: {reason}")
            continue
        part = str(record.step.labels["part"])
        content = read_json(run.folder(record.step) / f"{part}.json")
        rows.tested = content.get("tested", rows.tested)
        rows.reference = content.get("reference", rows.reference)
        rows.device = content.get("device", rows.device)
        if "cells" in content:
            rows.cells += content["cells"]
            rows.fixed_length = content["fixed_length"]
        else:
            rows.probes = content["probes"]
            rows.reproducer, rows.reproducer_folder = content["reproducer"], record.step.folder
    return rows


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
        content = read_json(run.folder(record.step) / "checks.json")
        ran = content.get("backend", backend)  # files of before this was noted name what was asked for
        label = backend if ran == backend else f"{backend} ({ran})"
        rows += [{"backend": label, **row} for row in content["checks"]]
    return pd.DataFrame(rows), missing


def _failed_step(backend: str, reason: str) -> dict[str, Any]:
    nothing = {"shape": "", "dtype": "", "value": None, "limit": None}
    return {"backend": backend, "check": "the step itself", **nothing, "verdict": "fail", "text": reason}
