"""An energy run from folder to findings."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pandas as pd

from lab.core.files import write_atomic
from lab.core.plan import Findings
from lab.report.tables import write_csv
from lab.rooms.kernels.energy.choice import RAW_FILE, RESULT, TABLE, RawEnergy
from lab.rooms.kernels.energy.joules import evaluate
from lab.rooms.kernels.energy.summary import missing_sentences, status, terminal, verdict_sentences
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
    rows = [msgspec.to_builtins(row) for row in result.rows]
    table = pd.DataFrame([row | {"flags": "; ".join(row["flags"])} for row in rows])
    write_csv(table, out / TABLE)
    return Findings(
        verdict=verdict_sentences(result),
        status=status(result),
        files=[out / RESULT, out / TABLE],
        terminal=terminal(result),
        lacking=missing_sentences(result),
    )
