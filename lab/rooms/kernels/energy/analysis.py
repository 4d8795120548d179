"""An energy run from folder to findings."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lab.core.files import write_atomic
from lab.core.plan import Findings
from lab.rooms.kernels.energy.choice import RawEnergy
from lab.rooms.kernels.energy.files import RAW_FILE, RESULT, TABLE
from lab.rooms.kernels.energy.joules import evaluate
from lab.rooms.kernels.energy.summary import missing_sentences, status, terminal, verdict_sentences
from lab.rooms.kernels.energy.table import csv_text
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.replay.files import PLAN_FILE, read_file
from lab.rooms.kernels.verdict import no_findings


def analyse_energy(folder: Path, out: Path) -> Findings:
    """Evaluate the measurement in `folder`; write energy.json and tables/energy.csv into `out`."""
    if not (folder / RAW_FILE).is_file():
        return no_findings("no window was measured", folder / RAW_FILE)
    plan = read_file(folder / PLAN_FILE, ReplayPlan)
    raw = read_file(folder / RAW_FILE, RawEnergy)
    result = evaluate(plan, raw)
    write_atomic(out / RESULT, msgspec.json.format(msgspec.json.encode(result), indent=1))
    write_atomic(out / TABLE, csv_text(result.rows))
    return Findings(
        verdict=verdict_sentences(result),
        status=status(result),
        files=[out / RESULT, out / TABLE],
        terminal=terminal(result),
        lacking=missing_sentences(result),
    )
