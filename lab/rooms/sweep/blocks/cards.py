"""The figures at the head of the page."""

from __future__ import annotations

import pandas as pd

from lab.report.parts import Card
from lab.rooms.sweep.tables import SETTING, SweepTables
from lab.rooms.sweep.verdict.honoured import knobs_of
from lab.rooms.sweep.verdict.ranking import Contender


def cards(tables: SweepTables, ranked: list[Contender]) -> list[Card]:
    configs = tables.configs
    complete = int((configs["status"] == "ok").sum())
    runs = Card("Complete runs", f"{complete} of {len(configs)}", "tables/configs.csv")
    if not ranked:
        return [runs]
    best, slowest = ranked[0], ranked[-1]
    return [
        Card("Shortest total time", f"{best.median_ms:.1f}", "tables/configs.csv", "ms", best.name),
        Card("Longest total time", f"{slowest.median_ms:.1f}", "tables/configs.csv", "ms", slowest.name),
        *_share_card(configs, best),
        *_gemm_card(tables.gemm),
        *(card for knob in knobs_of(tables.effective) for card in _honoured_card(tables.effective, knob)),
        runs,
    ]


def _share_card(configs: pd.DataFrame, best: Contender) -> list[Card]:
    of_best = (configs[SETTING] == list(best.knobs)).all(axis=1)
    rows = configs[of_best & (configs["status"] == "ok")]
    percent = 100 * (rows["exposed_comm_time_ms"] / rows["total_time_ms"]).median()
    if pd.isna(percent):
        return []
    note = f"of total time, {best.name}"
    return [Card("Exposed communication", f"{percent:.0f}", "tables/configs.csv", "%", note)]


def _gemm_card(gemm: pd.DataFrame) -> list[Card]:
    if gemm.empty:
        return []
    totals_ms = gemm.groupby([*SETTING, "repeat", "rank"])["sum_us"].sum().groupby(SETTING).median() / 1000
    low, high = totals_ms.min(), totals_ms.max()
    value = f"{low:.1f}" if len(totals_ms) == 1 else f"{low:.1f}–{high:.1f}"
    note = "median over ranks, all configurations"
    return [Card("GEMM time per rank", value, "tables/gemm.csv", "ms", note)]


def _honoured_card(effective: pd.DataFrame, knob: str) -> list[Card]:
    judged = effective[effective[f"{knob}_verdict"] != "unknown"]
    cases = judged.groupby([*SETTING, "collective", "msg_bytes"])[f"{knob}_verdict"]
    if not len(cases):
        return []
    honoured = int(cases.apply(lambda verdicts: bool((verdicts == "honoured").all())).sum())
    value, note = f"{honoured} of {len(cases)}", "configurations × collectives × sizes"
    return [Card(f"{knob.capitalize()} honoured", value, "tables/effective.csv", note=note)]
