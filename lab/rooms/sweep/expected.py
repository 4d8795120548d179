"""What a run of lab planned: the rows its result must have. Light: every `lab gemm` command asks for them."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

from lab.core.run import Run
from lab.core.step import Outcome, Status

LONG_PAUSE_S = 900.0
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


def interrupted_blocks(run: Run | None) -> list[str]:
    """One sentence per long pause within a block (repeat): the machine may have changed meanwhile."""
    blocks: dict[int, list[tuple[float, float, str]]] = {}
    for record in run.manifest.steps if run else ():
        span = _span_s(record.outcome)
        if span is not None:
            blocks.setdefault(int(record.step.labels["repeat"]), []).append((*span, record.step.name))
    sentences = []
    for repeat, steps in sorted(blocks.items()):
        ordered = sorted(steps)
        for (_, end, repeat_before), (begin, _, next_repeat) in itertools.pairwise(ordered):
            if begin - end > LONG_PAUSE_S:
                pause = f"{(begin - end) / 3600:.1f} h"
                sentences.append(
                    f"Block {repeat} paused for {pause} between {repeat_before} and {next_repeat}: "
                    "what changed on the "
                    "machine meanwhile is part of their comparison."
                )
    return sentences


def _span_s(outcome: Outcome | None) -> tuple[float, float] | None:
    """Begin and end of a step in unix seconds, None where it did not run."""
    if outcome is None or not outcome.started_utc or outcome.status is Status.skipped:
        return None
    try:
        begin = datetime.fromisoformat(outcome.started_utc).timestamp()
    except ValueError:
        return None
    return begin, begin + outcome.seconds
