"""A replay run from folder to findings."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lab.core.files import write_atomic
from lab.core.plan import Findings
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.replay.files import PLAN_FILE, RAW_FILE, RESULT, TABLE, read_file
from lab.rooms.kernels.replay.proof.evaluate import evaluate
from lab.rooms.kernels.replay.proof.summary import missing_sentences, status, terminal, verdict_sentences
from lab.rooms.kernels.replay.proof.table import csv_text
from lab.rooms.kernels.replay.raw import RawReplay
from lab.rooms.kernels.verdict import no_findings


def analyse_replay(folder: Path, out: Path) -> Findings:
    """Compare the replay in `folder` with its recording; write replay.json and replay.csv into `out`."""
    if not (folder / RAW_FILE).is_file():
        return no_findings("nothing was replayed", folder / RAW_FILE)
    plan = read_file(folder / PLAN_FILE, ReplayPlan)
    raw = read_file(folder / RAW_FILE, RawReplay)
    result = evaluate(plan, raw)
    write_atomic(out / RESULT, msgspec.json.format(msgspec.json.encode(result), indent=1))
    write_atomic(out / TABLE, csv_text(result.rows))
    return Findings(
        verdict=verdict_sentences(result),
        status=status(result),
        files=[out / RESULT, out / TABLE],
        terminal=terminal(result, plan),
        lacking=missing_sentences(result),
    )
