"""A sweep's analysis from folder to findings: what the manifest knows joins what the traces say."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lab
from lab.core.manifest import Manifest
from lab.core.provenance import lab_identity
from lab.core.run import Run
from lab.core.step import Status
from lab.rooms.sweep.analyze import analyze
from lab.rooms.sweep.report import Findings, report

STATUS = {Status.ok: "ok", Status.skipped: "ok"}


def analyse_sweep(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Read every trace below `folder`, put tables, figures and report.html into `out`."""

    def each(done: int, total: int, path: Path) -> None:
        if done == total or done % 8 == 0:
            progress(f"  read {done} of {total} traces")

    workers = min(8, len(os.sched_getaffinity(0)))
    tables = analyze(folder, expected=expected_rows(run), workers=workers, progress=each)
    manifest = run.manifest if run else None
    kind = manifest.kind.value if manifest else "measured"
    return report(
        tables,
        out=out,
        title=f"Sweep {folder.resolve().name}",
        provenance=provenance(folder, manifest),
        kind=kind,
    )


def expected_rows(run: Run | None) -> list[dict[str, Any]]:
    """One row a planned step, so that what failed or never ran is a row of the result too."""
    rows = []
    for record in run.manifest.steps if run else ():
        outcome, labels = record.outcome, record.step.labels
        rows.append({
            "threads": labels["threads"], "channel": labels["channels"], "repeat": labels["repeat"],
            "status": STATUS.get(outcome.status, "failed") if outcome else "missing",
            "reason": outcome.reason if outcome else "did not run"})  # fmt: skip
    return rows


def provenance(folder: Path, manifest: Manifest | None) -> dict[str, dict[str, str]]:
    """What the page says of where its numbers come from."""
    if manifest is None:
        identity = lab_identity()
        return {"Recording": {"folder": str(folder), "manifest": "none: lab did not make this recording"},
                "Analysed by": {"lab": lab.__version__, "commit": identity.commit or "unknown"}}  # fmt: skip
    made = manifest.lab
    groups: dict[str, dict[str, str]] = {
        "Run": {"id": manifest.id, "created": manifest.created_utc, "command": " ".join(manifest.command),
                "engine": manifest.engine, "image": manifest.image.ref if manifest.image else "none",
                "lab": f"{made.version} {made.commit or ''}{' with local changes' if made.dirty else ''}".strip()},
        "Host": {name: str(value) for name, value in manifest.host.items()},
        "GPUs": {f"{gpu.index}": f"{gpu.name} {gpu.uuid} driver {gpu.driver}" for gpu in manifest.gpus} or {"none": "CPU run"},
        "Versions": manifest.versions,
        "Environment": manifest.env,
        "Configuration": {name: str(value) for name, value in manifest.config.items()},
    }  # fmt: skip
    return {title: rows for title, rows in groups.items() if rows}
