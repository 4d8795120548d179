"""The account as tables: steps, waits, clocks, findings, what-if, path."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from lab.recordings.ranks.account import PARTS
from lab.recordings.ranks.explained import Explained
from lab.rooms.sweep.tables import column_names

ACCOUNT = [
    *column_names("step rank step_ns"),
    *PARTS,
    *column_names("wait_for not_separable_ns contention_beside_waiting_ns entered_late_ns"),
]
WAITS = column_names("step rank for because wait_ns")
CLOCKS = column_names("rank offset_us low_us high_us drift_ppm corrected plausible")
FINDINGS = column_names("rank cause binding cost_ms saves_ms steps finding")
WHAT_IF = column_names("step change length_ms recorded_ms saves_ms")
BUBBLES = column_names("pipeline stage rank step step_ns compute_ns warm_up_ns steady_ns cool_down_ns")
PATH = column_names("step rank kind begin_us length_us op")


def tables(explained: Explained) -> dict[str, pd.DataFrame]:
    """account, waits, clocks, findings, what_if and path of one setting."""
    return {
        "account": account_table(explained),
        "waits": pd.DataFrame(
            [
                {"step": w.step, "rank": w.rank, "for": w.awaited, "because": w.because, "wait_ns": w.ns}
                for w in explained.account.waits
            ],
            columns=WAITS,
        ),
        "clocks": pd.DataFrame(clock_rows(explained), columns=CLOCKS),
        "findings": pd.DataFrame(
            [
                {
                    **{
                        name: getattr(f, name) for name in ("rank", "cause", "binding", "cost_ms", "saves_ms")
                    },
                    "steps": ", ".join(map(str, f.steps)),
                    "finding": f.text,
                }
                for f in explained.findings
            ],
            columns=FINDINGS,
        ),
        "what_if": pd.DataFrame(
            [
                {
                    "step": row.step,
                    "change": row.change,
                    "length_ms": row.length_ms,
                    "recorded_ms": row.recorded_ms,
                    "saves_ms": row.recorded_ms - row.length_ms,
                }
                for row in explained.what_if
            ],
            columns=WHAT_IF,
        ),
        "path": path_table(explained),
        **(
            {"pipeline": pd.DataFrame(bubble_rows(explained), columns=BUBBLES)} if explained.pipelines else {}
        ),
    }


def bubble_rows(explained: Explained) -> list[dict[str, Any]]:
    """One row per pipeline, stage and step: what the stage computes, and waits in each phase."""
    return [
        {"pipeline": number, **{name: getattr(bubbles, name) for name in BUBBLES[1:]}}
        for number, pipeline in enumerate(explained.pipelines)
        for bubbles in sorted(pipeline.bubbles, key=lambda row: (row.stage, row.step))
    ]


def account_table(explained: Explained) -> pd.DataFrame:
    """One row per step and rank, ns; the parts sum to step_ns."""
    rows = [
        {
            "step": row.step,
            "rank": row.rank,
            "step_ns": row.step_ns,
            **row.parts,
            "wait_for": row.wait_for,
            "not_separable_ns": row.not_separable_ns,
            "contention_beside_waiting_ns": row.beside_wait_ns,
            "entered_late_ns": row.entered_ns,
        }
        for row in explained.account.rows
    ]
    table: pd.DataFrame = pd.DataFrame(rows, columns=ACCOUNT).astype({"wait_for": "Int64"})
    return table


def path_table(explained: Explained) -> pd.DataFrame:
    """The critical path of each step, piece by piece; op is the operation's op or kernel, "" for the host."""
    account = explained.account
    rows = []
    for step, pieces in explained.path.items():
        for piece in pieces:
            work = account.together.works[account.ranks.index(piece.rank)]
            op, _, _, kernel, _ = work.keys[piece.key] if piece.key >= 0 else ("", "", "", "", "")
            rows.append(
                {
                    "step": step,
                    "rank": piece.rank,
                    "kind": piece.kind,
                    "begin_us": round(piece.begin_ns / 1e3, 3),
                    "length_us": round(piece.ns / 1e3, 3),
                    "op": op or kernel,
                }
            )
    table: pd.DataFrame = pd.DataFrame(rows, columns=PATH)
    return table


def clock_rows(explained: Explained) -> list[dict[str, Any]]:
    """One row per rank in us; None where no collective bounds its clock."""
    return [
        {
            "rank": clock.rank,
            "offset_us": _us(clock.offset_ns),
            "low_us": _us(clock.low_ns),
            "high_us": _us(clock.high_ns),
            "drift_ppm": round(clock.drift_ppm, 3),
            "corrected": clock.corrected,
            "plausible": clock.plausible,
        }
        for clock in explained.account.clocks
    ]


def as_json(explained: Explained) -> dict[str, Any]:
    """What scripts rely on (docs/RANKS.md)."""
    account = explained.account
    steps = [
        {
            "step": row.step,
            "rank": row.rank,
            "step_ns": row.step_ns,
            **row.parts,
            "wait_for": row.wait_for,
            "not_separable_ns": row.not_separable_ns,
        }
        for row in account.rows
    ]
    return {
        "steps": steps,
        "collectives": {"calls": account.num_calls, "complete": account.num_complete},
        "clocks": clock_rows(explained),
        "findings": [
            {
                "rank": f.rank,
                "cause": f.cause,
                "binding": f.binding,
                "cost_ms": f.cost_ms,
                "steps": list(f.steps),
                "saves_ms": f.saves_ms,
                "text": f.text,
            }
            for f in explained.findings
        ],
        "waits": [
            {"step": w.step, "rank": w.rank, "for": w.awaited, "because": w.because, "ns": w.ns}
            for w in account.waits
        ],
        "what_if": [
            {
                "step": row.step,
                "change": row.change,
                "ranks": list(row.ranks),
                "length_ms": row.length_ms,
                "recorded_ms": row.recorded_ms,
            }
            for row in explained.what_if
        ],
        "pipelines": [
            {
                "ranks": list(pipeline.ranks),
                "schedule": pipeline.schedule,
                "microbatches": pipeline.num_microbatches,
            }
            for pipeline in explained.pipelines
        ],
        "bubbles": bubble_rows(explained),
        "windows": account.together.window_kind,
        "withheld": list(explained.withheld),
        "notes": list(explained.notes),
    }


def _us(ns: float) -> float | None:
    return None if math.isnan(ns) else round(ns / 1e3, 3)
