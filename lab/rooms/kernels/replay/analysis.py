"""A replay run from folder to findings."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pandas as pd

from lab.core.files import write_atomic
from lab.core.plan import Findings
from lab.report.tables import write_csv
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.replay.files import PLAN_FILE, RAW_FILE, RESULT, TABLE, read_file
from lab.rooms.kernels.replay.proof.evaluate import evaluate
from lab.rooms.kernels.replay.proof.result import Row
from lab.rooms.kernels.replay.proof.summary import missing_sentences, status, terminal, verdict_sentences
from lab.rooms.kernels.replay.raw import RawReplay
from lab.rooms.kernels.verdict import no_findings

_COLUMNS = (
    "sig_id position op overload kernel class kind mode count trace_sum_us trace_median_us time_share n_ran "
    "replay_median_us replay_ci_low_us replay_ci_high_us err_pct same_kernel arg_src origin launched flags "
    "name"
)


def analyse_replay(folder: Path, out: Path) -> Findings:
    """Compare the replay in `folder` with its recording; write replay.json and replay.csv into `out`."""
    if not (folder / RAW_FILE).is_file():
        return no_findings("nothing was replayed", folder / RAW_FILE)
    plan = read_file(folder / PLAN_FILE, ReplayPlan)
    raw = read_file(folder / RAW_FILE, RawReplay)
    result = evaluate(plan, raw)
    write_atomic(out / RESULT, msgspec.json.format(msgspec.json.encode(result), indent=1))
    write_csv(_table(result.rows), out / TABLE)
    return Findings(
        verdict=verdict_sentences(result),
        status=status(result),
        files=[out / RESULT, out / TABLE],
        terminal=terminal(result, plan),
        lacking=missing_sentences(result),
    )


def _table(rows: list[Row]) -> pd.DataFrame:
    """replay.csv: one row per launch of a signature, by share of time."""
    cells = []
    for row in sorted(rows, key=lambda row: -row.time_share):
        us = row.us or {"median": None, "ci": None}
        low, high = us["ci"] or (None, None)
        values = msgspec.to_builtins(row) | {"flags": "; ".join(row.flags)}
        values |= {"replay_median_us": us["median"], "replay_ci_low_us": low, "replay_ci_high_us": high}
        cells.append(values)
    table: pd.DataFrame = pd.DataFrame(cells, columns=_COLUMNS.split())
    return table
