"""The account as rows: CSV tables, and the JSON that scripts rely on (docs/ranks.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from lab.recordings.ranks.account import PARTS
from lab.recordings.ranks.explained import Explained
from lab.rooms.sweep.tables import column_names

ACCOUNT = [
    *column_names("step rank step_ns"),
    *PARTS,
    *column_names("wait_for not_separable_ns entered_late_ns"),
]
CLOCKS = column_names("rank offset_us low_us high_us drift_ppm corrected plausible")
FINDINGS = column_names("rank cause binding cost_ms saves_ms steps text")
WAITS = column_names("step rank for because ns")
WHAT_IF = column_names("step change ranks length_ms recorded_ms")
BUBBLES = column_names("pipeline stage rank step step_ns compute_ns warm_up_ns steady_ns cool_down_ns")
PATH = column_names("step rank kind begin_us length_us op")

Rows = list[dict[str, Any]]


def tables(explained: Explained) -> dict[str, pd.DataFrame]:
    """account, waits, clocks, findings, what_if, path and pipeline of one setting."""
    findings = pd.DataFrame(_records(explained.findings, FINDINGS), columns=FINDINGS)
    findings["steps"] = [", ".join(map(str, steps)) for steps in findings["steps"]]
    what_if = pd.DataFrame(_records(explained.what_if, WHAT_IF), columns=WHAT_IF).drop(columns="ranks")
    what_if["saves_ms"] = what_if["recorded_ms"] - what_if["length_ms"]
    frames = {
        "account": account_table(explained),
        "waits": pd.DataFrame(_waits(explained), columns=WAITS).rename(columns={"ns": "wait_ns"}),
        "clocks": pd.DataFrame(_clocks(explained), columns=CLOCKS),
        "findings": findings.rename(columns={"text": "finding"}),
        "what_if": what_if,
        "path": pd.DataFrame(_path(explained), columns=PATH),
    }
    if explained.pipelines:
        frames["pipeline"] = pd.DataFrame(_bubbles(explained), columns=BUBBLES)
    return frames


def account_table(explained: Explained) -> pd.DataFrame:
    """One row per step and rank, ns; the parts sum to step_ns."""
    table: pd.DataFrame = pd.DataFrame(_steps(explained), columns=ACCOUNT).astype({"wait_for": "Int64"})
    return table


def as_json(explained: Explained) -> dict[str, Any]:
    """Account as scripts read it."""
    account = explained.account
    return {
        "steps": _steps(explained),
        "collectives": {"calls": account.num_calls, "complete": account.num_complete},
        "clocks": _clocks(explained),
        "findings": _records(explained.findings, FINDINGS),
        "waits": _waits(explained),
        "what_if": _records(explained.what_if, WHAT_IF),
        "pipelines": [
            {
                "ranks": list(pipeline.ranks),
                "schedule": pipeline.schedule,
                "microbatches": pipeline.num_microbatches,
            }
            for pipeline in explained.pipelines
        ],
        "bubbles": _bubbles(explained),
        "windows": account.together.window_kind,
        "withheld": list(explained.withheld),
        "notes": list(explained.notes),
    }


def _records(items: Iterable[Any], names: Iterable[str]) -> Rows:
    return [{name: getattr(item, name) for name in names} for item in items]


def _steps(explained: Explained) -> Rows:
    return [
        {
            "step": row.step,
            "rank": row.rank,
            "step_ns": row.step_ns,
            **row.parts,
            "wait_for": row.wait_for,
            "not_separable_ns": row.not_separable_ns,
            "entered_late_ns": row.entered_ns,
        }
        for row in explained.account.rows
    ]


def _waits(explained: Explained) -> Rows:
    return [
        {"step": w.step, "rank": w.rank, "for": w.awaited, "because": w.because, "ns": w.ns}
        for w in explained.account.waits
    ]


def _bubbles(explained: Explained) -> Rows:
    """One row per pipeline, stage and step: what the stage computes, and waits in each phase."""
    return [
        {"pipeline": number, **row}
        for number, pipeline in enumerate(explained.pipelines)
        for row in _records(sorted(pipeline.bubbles, key=lambda b: (b.stage, b.step)), BUBBLES[1:])
    ]


def _path(explained: Explained) -> Rows:
    """The critical path of each step, piece by piece; op is the operation's op or kernel, "" for the host."""
    account = explained.account
    rows = []
    for step, pieces in explained.path.items():
        for piece in pieces:
            work = account.work(piece.rank)
            op, _, _, kernel, _ = work.keys[piece.key] if piece.key >= 0 else ("", "", "", "", "")
            times_us = round(piece.begin_ns / 1e3, 3), round(piece.ns / 1e3, 3)
            rows.append(dict(zip(PATH, (step, piece.rank, piece.kind, *times_us, op or kernel), strict=True)))
    return rows


def _clocks(explained: Explained) -> Rows:
    """One row per rank in us; None where no collective bounds its clock."""

    def us(ns: float) -> float | None:
        return None if math.isnan(ns) else round(ns / 1e3, 3)

    return [
        {
            "rank": clock.rank,
            "offset_us": us(clock.offset_ns),
            "low_us": us(clock.low_ns),
            "high_us": us(clock.high_ns),
            "drift_ppm": round(clock.drift_ppm, 3),
            "corrected": clock.corrected,
            "plausible": clock.plausible,
        }
        for clock in explained.account.clocks
    ]
