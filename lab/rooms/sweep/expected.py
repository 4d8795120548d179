"""What a run of lab planned: the rows its result must have. Light: every `lab gemm` command asks for them."""

from __future__ import annotations

from typing import Any

from lab.core.run import Run
from lab.core.step import Status

STATUS = {Status.ok: "ok", Status.skipped: "ok"}


def expected_rows(run: Run | None) -> list[dict[str, Any]]:
    """One row per planned step, so that a step that failed or never ran is a row of the result too."""
    rows = []
    for record in run.manifest.steps if run else ():
        outcome, labels = record.outcome, record.step.labels
        rows.append(
            {
                "threads": labels["threads"],
                "channel": labels["channels"],
                "algorithm": labels.get("algorithm", ""),
                "protocol": labels.get("protocol", ""),
                "repeat": labels["repeat"],
                "status": STATUS.get(outcome.status, "failed") if outcome else "missing",
                "reason": outcome.reason if outcome else "did not run",
            }
        )
    return rows
