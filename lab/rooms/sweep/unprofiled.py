"""Step times without the profiler: what a sweep compares; the profile only says why.

Every rank writes a line of metrics per step, with the profiler's state. A step of the job takes as long as
its slowest rank; the first steps are warm-up and do not count.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lab.core.words import first_few, plural
from lab.rooms.sweep.layout import ConfigDir
from lab.rooms.sweep.tables import SETTING, column_names, short_name

WARM_UP_STEPS = 3
FEWEST_STEPS = 5
# A profile that makes steps longer than this disturbs what it measures.
NOTABLE_COST = 1.1
NOTABLE_DRIFT = 0.05
COLUMNS = column_names(
    "threads channel algorithm protocol repeat unprofiled_steps unprofiled_ms p5_ms p95_ms drift "
    "profiled_steps profiled_ms profile_cost ranks_found ranks_expected"
)
_MOST_LINES = 100_000


def unprofiled_table(configs: Iterable[ConfigDir]) -> pd.DataFrame:
    """One row per run, none if no run has metrics.

    drift: the last third's median over the first third's, minus 1. profile_cost: the profiled steps' median
    over the unprofiled ones'. NaN without such steps.
    """
    rows = [_row(config) for config in configs]
    table: pd.DataFrame = pd.DataFrame(
        rows if any(row["ranks_found"] for row in rows) else [], columns=COLUMNS
    )
    return table


def sentences(table: pd.DataFrame) -> list[str]:
    """Which blocks do not count, how steady the steps are, and what the profile costs."""
    enough = table[table["unprofiled_steps"] >= FEWEST_STEPS]
    if enough.empty:
        few = int(table["unprofiled_steps"].max()) if len(table) else 0
        reason = f"at most {few} per run" if few else "none after warm-up"
        too_few = f"Unprofiled steps are too few to compare settings by ({reason}): times are profiled."
        return [*left_out(table), too_few] if len(table) else []
    return [text for text in (*left_out(table), _cost(table), _drift(enough)) if text]


def left_out(table: pd.DataFrame) -> list[str]:
    """The runs whose unprofiled steps do not count: ranks left no metrics, or others have enough steps."""
    absent = table["ranks_found"] < table["ranks_expected"]
    texts = [
        f"{_name(row)}: metrics of {row['ranks_found']} of {plural(row['ranks_expected'], 'rank')}, and an "
        "absent rank may be the slowest: its unprofiled steps are not compared."
        for row in table[absent].to_dict("records")
    ]
    few = (table["unprofiled_steps"] < FEWEST_STEPS) & ~absent
    if few.any() and not (few | absent).all():
        names = [f"{_name(row)} ({row['unprofiled_steps']})" for row in table[few].to_dict("records")]
        texts.append(
            f"Fewer than {FEWEST_STEPS} unprofiled steps after warm-up in {first_few(names)}: "
            "these blocks are left out of the comparison without the profiler."
        )
    return texts


def _name(row: Mapping[Any, Any]) -> str:
    return f"{short_name(*(row[name] for name in SETTING))}, repeat {row['repeat']}"


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


def _row(config: ConfigDir) -> dict[str, Any]:
    by_rank = [steps for path in sorted(config.path.glob("rank_*_metrics.jsonl")) if (steps := _steps(path))]
    num_expected = max([len(by_rank), *(step.world_size for steps in by_rank for step in steps.values())])
    common = sorted(set.intersection(*map(set, by_rank))) if len(by_rank) == num_expected > 0 else []
    # A step of the job takes as long as its slowest rank.
    slowest = [(max(steps[number].ms for steps in by_rank), by_rank[0][number].phase) for number in common]
    free = [ms for ms, phase in slowest if phase in ("none", "off")][WARM_UP_STEPS:]
    recorded = [ms for ms, phase in slowest if phase.startswith("record")]
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
        "ranks_found": len(by_rank),
        "ranks_expected": num_expected,
    }


class _Step(NamedTuple):
    """One step of one rank: its length, the profiler's phase, and how many ranks the job has (0 unknown)."""

    ms: float
    phase: str
    world_size: int


def _steps(path: Path) -> dict[int, _Step]:
    """Steps by number, of each line that can be read; a line that a killed rank cut is left out."""
    steps = {}
    with path.open("rb") as file:
        for text in islice(file, _MOST_LINES):
            with suppress(ValueError, KeyError, TypeError, IndexError):
                line = json.loads(text)
                phase = str(line["profile"]["markers"][0]["name"]).removeprefix("profiler_")
                ms, world_size = float(line["profile"]["total_ms"]), int(line.get("world_size", 0))
                steps[int(line["global_step"])] = _Step(ms, phase, world_size)
    return steps
