"""Step times without the profiler: what a sweep compares; the profile only says why.

Every rank writes a line of metrics per step, with the profiler's state. A step of the job takes as long as
its slowest rank; the first steps are warm-up and do not count.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.core.words import first_few
from lab.rooms.sweep.layout import ConfigDir
from lab.rooms.sweep.tables import SETTING, column_names, short_name

WARM_UP_STEPS = 3
FEWEST_STEPS = 5
# A profile that makes steps longer than this disturbs what it measures.
NOTABLE_COST = 1.1
NOTABLE_DRIFT = 0.05
COLUMNS = column_names(
    "threads channel algorithm protocol repeat unprofiled_steps unprofiled_ms p5_ms p95_ms drift "
    "profiled_steps profiled_ms profile_cost"
)
_MOST_LINES = 100_000


def unprofiled_table(configs: Iterable[ConfigDir]) -> pd.DataFrame:
    """One row per run, none if no run has metrics.

    drift: the last third's median over the first third's, minus 1. profile_cost: the profiled steps' median
    over the unprofiled ones'. NaN without such steps.
    """
    runs = [(config, _steps(sorted(config.path.glob("rank_*_metrics.jsonl")))) for config in configs]
    rows = [_row(config, steps) for config, steps in runs] if any(steps for _, steps in runs) else []
    table: pd.DataFrame = pd.DataFrame(rows, columns=COLUMNS)
    return table


def sentences(table: pd.DataFrame) -> list[str]:
    """Which blocks do not count, how steady the steps are, and what the profile costs."""
    enough = table[table["unprofiled_steps"] >= FEWEST_STEPS]
    if enough.empty:
        few = int(table["unprofiled_steps"].max()) if len(table) else 0
        reason = f"at most {few} per run" if few else "none after warm-up"
        too_few = f"Unprofiled steps are too few to compare settings by ({reason}): times are profiled."
        return [too_few] if len(table) else []
    return [text for text in (*left_out(table), _cost(table), _drift(enough)) if text]


def left_out(table: pd.DataFrame) -> list[str]:
    """The runs with too few unprofiled steps, where others have enough: their blocks do not count."""
    few = table["unprofiled_steps"] < FEWEST_STEPS
    if few.all():
        return []
    names = [
        f"{short_name(*(row[name] for name in SETTING))}, repeat {row['repeat']} ({row['unprofiled_steps']})"
        for row in table[few].to_dict("records")
    ]
    if not names:
        return []
    return [
        f"Fewer than {FEWEST_STEPS} unprofiled steps after warm-up in {first_few(names)}: "
        "these blocks are left out of the comparison without the profiler."
    ]


def _cost(table: pd.DataFrame) -> str | None:
    cost = table["profile_cost"].dropna()
    if cost.empty:
        return None
    middle = float(cost.median())
    if middle <= NOTABLE_COST:
        return f"The profile makes a step {middle:.2f} times as long."
    return (
        f"The profile makes a step {middle:.2f} times as long: compare by the unprofiled times, "
        "take the cause only from the traces, and try a lighter profile."
    )


def _drift(enough: pd.DataFrame) -> str | None:
    moving = enough[enough["drift"].abs() > NOTABLE_DRIFT]
    if moving.empty:
        return None
    worst = float(moving["drift"].loc[moving["drift"].abs().idxmax()])
    return f"Steps drift within {len(moving)} of {len(enough)} runs, by {100 * worst:+.0f} % at most."


def _row(config: ConfigDir, steps: dict[int, tuple[float, str]]) -> dict[str, Any]:
    free = [steps[step][0] for step in sorted(steps) if steps[step][1] in ("none", "off")]
    free = free[WARM_UP_STEPS:] if len(free) > WARM_UP_STEPS else []
    recorded = [ms for ms, phase in steps.values() if phase.startswith("record")]
    middle, profiled = (float(np.median(part)) if part else math.nan for part in (free, recorded))
    third = len(free) // 3
    drift = float(np.median(free[-third:]) / np.median(free[:third]) - 1) if third else math.nan
    edges = np.percentile(free, [5, 95]) if free else (math.nan, math.nan)
    return {
        **config.key._asdict(),
        "unprofiled_steps": len(free),
        "unprofiled_ms": middle,
        "p5_ms": float(edges[0]),
        "p95_ms": float(edges[1]),
        "drift": drift,
        "profiled_steps": len(recorded),
        "profiled_ms": profiled,
        "profile_cost": profiled / middle,
    }


def _steps(paths: Sequence[Path]) -> dict[int, tuple[float, str]]:
    """(ms of the slowest rank, the profiler's phase) of each step that every rank has a line of."""
    per_rank = [dict(_lines(path)) for path in paths]
    common = set.intersection(*(set(steps) for steps in per_rank)) if per_rank else set()
    return {
        step: (max(steps[step][0] for steps in per_rank), per_rank[0][step][1]) for step in sorted(common)
    }


def _lines(path: Path) -> Iterable[tuple[int, tuple[float, str]]]:
    """Step, ms and phase of each line that can be read; a line that a killed rank cut is left out."""
    with path.open("rb") as file:
        for _, text in zip(range(_MOST_LINES), file, strict=False):
            try:
                line = json.loads(text)
                profile = line["profile"]
                marker = str(profile["markers"][0]["name"]).removeprefix("profiler_")
                yield int(line["global_step"]), (float(profile["total_ms"]), marker)
            except (ValueError, KeyError, TypeError, IndexError):
                continue
