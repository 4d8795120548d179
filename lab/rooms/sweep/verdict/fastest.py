"""Which setting is fastest, in ms per step, and what the repeats allow to claim.

A run's step time is measured without the profiler where enough such steps were recorded, else it is the span
of its GPU work per step: shorter than from mark to mark where hosts launch late. Every repeat is a block: a
pass over all settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lab.core.words import first_few, plural
from lab.rooms.sweep.knobs import Knobs
from lab.rooms.sweep.tables import KEY, SETTING, SweepTables, copies, grouped, long_name, of_complete, timed
from lab.rooms.sweep.unprofiled import FEWEST_STEPS
from lab.stats.effects import best_of
from lab.stats.means import mean_interval

UNPROFILED, PROFILED = "without the profiler", "from first to last kernel, as profiled"


@dataclass(frozen=True)
class StepTime:
    """A setting's time per step: the mean over its runs with its 95 % interval, NaN for a single run."""

    knobs: Knobs
    mean_ms: float
    low_ms: float
    high_ms: float

    @property
    def name(self) -> str:
        return long_name(*self.knobs)

    @property
    def interval(self) -> str:
        """` (10.1 to 10.4)`, or nothing for a single run."""
        return "" if math.isnan(self.low_ms) else f" ({self.low_ms:.1f} to {self.high_ms:.1f})"


@dataclass(frozen=True)
class StepTimes:
    """The runs that may be compared, and the settings by their step time, fastest first.

    runs: columns SETTING, repeat and step_ms. source: UNPROFILED or PROFILED.
    """

    runs: pd.DataFrame
    ranked: list[StepTime]
    source: str


def step_times(tables: SweepTables, unprofiled: pd.DataFrame | None = None) -> StepTimes:
    """The step times of a sweep; unprofiled: the rows of `unprofiled_table`."""
    runs, source = profiled_runs(tables), PROFILED
    if unprofiled is not None and (unprofiled["unprofiled_steps"] >= FEWEST_STEPS).any():
        enough = unprofiled[unprofiled["unprofiled_steps"] >= FEWEST_STEPS]
        enough = enough[~enough[KEY].apply(tuple, axis=1).isin(_cannot_win(tables))]
        runs, source = enough.rename(columns={"unprofiled_ms": "step_ms"})[[*KEY, "step_ms"]], UNPROFILED
    runs = _whole_blocks(runs)
    ranked = [
        StepTime(Knobs(*setting), *mean_interval(rows["step_ms"].tolist()))
        for setting, rows in grouped(runs, SETTING)
    ]
    return StepTimes(runs, sorted(ranked, key=lambda setting: setting.mean_ms), source)


def _cannot_win(tables: SweepTables) -> list[tuple[Any, ...]]:
    """The runs that failed, lack a rank or are copies, whatever steps they left."""
    configs = tables.configs
    # Without any trace the profiler was off: then no run lacks one.
    comparable = ("ok", "missing") if tables.timeline.empty else ("ok",)
    rows = pd.concat([configs[~configs["status"].isin(comparable)], copies(configs)])
    return list(rows[KEY].itertuples(index=False, name=None))


def headline(times: StepTimes) -> str:
    """Which setting is fastest, with its interval, and whether its repeats prove it."""
    if not times.ranked:
        return "No configuration was analysed completely: no result."
    best = times.ranked[0]
    best_ms = f"{best.mean_ms:.1f} ms per step{best.interval} {times.source}"
    if len(times.ranked) == 1:
        return f"Only {best.name} was analysed completely: {best_ms}, with nothing to compare it to."
    second = times.ranked[1]
    return f"{best.name} is fastest: {best_ms}; {second.name} takes {second.mean_ms:.1f} ms; {_proof(times)}."


def uneven_steps(timeline: pd.DataFrame, configs: pd.DataFrame) -> str | None:
    """A sentence if the traces hold different numbers of steps, whose times do not compare."""
    steps = sorted(set(of_complete(timeline, configs)["steps"]))
    if len(steps) < 2:
        return None
    counts = " and ".join(map(str, steps))
    return f"The traces hold {counts} profiled steps: total times do not compare, so no configuration wins."


def profiled_runs(tables: SweepTables) -> pd.DataFrame:
    """The complete runs, each once: the median over ranks of the total time, per step."""
    complete = timed(tables.configs).drop(copies(tables.configs).index)
    steps = tables.timeline.groupby(KEY)["steps"].max().clip(lower=1)
    runs = complete.merge(steps.reset_index(), on=KEY)
    runs["step_ms"] = runs["total_time_ms"] / runs["steps"]
    rows: pd.DataFrame = runs[[*KEY, "step_ms"]]
    return rows


def _whole_blocks(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of blocks in which every setting has one; all where none is whole."""
    num_settings = len(runs[SETTING].drop_duplicates())
    is_whole = runs.groupby("repeat")["repeat"].transform("size") == num_settings
    rows: pd.DataFrame = runs[is_whole] if is_whole.any() else runs
    return rows


def _proof(times: StepTimes) -> str:
    """What the blocks prove about the fastest; logs compare shares."""
    blocks = times.runs.pivot_table(index="repeat", columns=SETTING, values="step_ms").dropna()
    if len(blocks) < 2:
        return "with one run each this order may be chance"
    best = best_of(np.log(blocks.to_numpy()))
    lead, needed = (f"{100 * math.expm1(value):.1f} %" for value in (best.lead, best.needed))
    proof = f"a lead of {lead}, {needed} needed over {plural(len(blocks), 'block')}"
    rivals = [long_name(*blocks.columns[index]) for index in best.candidates if index != best.lowest]
    return (
        f"within noise of {first_few(rivals)} ({proof})" if rivals else f"it alone may be the best ({proof})"
    )
