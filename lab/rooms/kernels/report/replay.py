"""The replay section: bars, coverage, sums per forward, and the error of each kernel."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from lab.report.parts import Block, Chart, Points, Section, Series, Table
from lab.rooms.kernels.replay.proof.result import EXACT, OP_ONLY, Coverage, Result, Row
from lab.rooms.kernels.replay.proof.summary import CPU_ONLY, QUESTIONS

ROLES = {"same kernel": "ok", "op on the CPU, no kernel": "warn", "other kernel or none": "fail"}
NAMES = {EXACT: "same kernel", OP_ONLY: "op on the CPU, no kernel"}
MET = {True: "met", False: "not met", None: "not tested here"}


def replay_section(result: Result | None, home: str = "") -> list[Section]:
    """The section, or nothing without a replay. `home` is the replay's folder as the page links it."""
    if result is None:
        return []
    csv = f"{home}tables/replay.csv"
    bars = [f"{name.replace('_', ' ')}: {MET[met]}" for name, met in result.bars.items()]
    asked = f"{result.mode} answers: {QUESTIONS.get(result.mode, 'unknown mode')}"
    heading = [CPU_ONLY] if result.device == "cpu" else [asked]
    blocks: list[Block] = [Points([*heading, *bars, *result.notes]), *_charts(result, csv)]
    blocks.append(Table(_coverage(result), "Coverage", csv))
    if any(one.compared_us for one in result.closure):
        blocks.append(Table(_closure(result), "Sums per forward", csv))
    return [Section("Op replay" if result.device == "cpu" else "Replay", blocks)]


def _coverage(result: Result) -> pd.DataFrame:
    rows = [
        {
            "launches_of": name,
            "launches": cover.launches,
            "rebuilt": cover.rebuilt_launches,
            "time_us": cover.time_us,
            **_proof(cover, result.device),
        }
        for name, cover in result.coverage.items()
    ]
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def _proof(cover: Coverage, device: str) -> dict[str, Any]:
    """How much was proven; on a CPU there is no kernel to prove, which is not the same as 0 %."""
    if device == "cpu":
        return {"same_kernel": "not looked at (CPU)"}
    return {"same_kernel": cover.same_launches, "same_of_time_percent": cover.percent("same", "time_us")}


def _closure(result: Result) -> pd.DataFrame:
    rows = [
        {
            "forward": forward.name,
            "recorded_us": forward.compared_us,
            "replayed_us": forward.replay_sum_us,
            "off_percent": forward.closure_pct,
            "busy_us": forward.busy_us,
            "wall_us": forward.wall_us,
        }
        for forward in result.closure
    ]
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def _charts(result: Result, csv: str) -> list[Block]:
    """Recorded against replayed medians, and the error of each over its time."""
    medians: dict[str, list[tuple[Any, ...]]] = {name: [] for name in ROLES}
    for row in result.rows:
        median = float(row.us["median"]) if row.us else 0.0
        if median <= 0 or row.trace_median_us <= 0:
            continue
        name = NAMES.get(row.same_kernel, "other kernel or none")
        across, hover = math.log10(row.trace_median_us), _hover(row, median)
        medians[name].append((across, math.log10(median), hover))
    axis = "log10 of the recorded µs"
    noun = "op" if result.device == "cpu" else "kernel"
    equal = f"Median time of each {noun}, recorded and replayed ({result.mode}); equal on the diagonal."
    charts = [
        Chart("replay", axis, ["log10 of the replayed µs"], _series(medians), equal, csv, diagonal=True),
    ]
    return [chart for chart in charts if chart.series]


def _hover(row: Row, median_us: float) -> str:
    times = f"{row.trace_median_us:.2f} µs recorded, {median_us:.2f} µs replayed"
    return f"{row.kernel} ({row.op}): {times}, {row.count} times"


def _series(points: dict[str, list[tuple[Any, ...]]]) -> list[Series]:
    return [Series(name, ROLES[name], [point]) for name, point in points.items() if point]
