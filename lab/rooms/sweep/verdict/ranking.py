"""Which configuration is fastest, and what the repeats allow to claim."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lab.core.words import plural
from lab.rooms.sweep.knobs import Knobs
from lab.rooms.sweep.names import long_name
from lab.rooms.sweep.tables import SETTING, copies, of_complete
from lab.stats.means import mean_interval


@dataclass(frozen=True)
class Contender:
    """A configuration with complete repeats; `totals_ms`: total time of each, median over its ranks."""

    knobs: Knobs
    totals_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return float(np.median(self.totals_ms))

    @property
    def name(self) -> str:
        return long_name(*self.knobs)


def contenders(configs: pd.DataFrame) -> list[Contender]:
    """Complete configurations, fastest first by median total time; all others, and copies, are left out."""
    complete = configs[(configs["status"] == "ok") & configs["total_time_ms"].notna()]
    complete = complete.drop(copies(configs).index)
    groups = complete.groupby(SETTING, sort=True)["total_time_ms"]
    ranked = [Contender(Knobs(*key), tuple(map(float, totals))) for key, totals in groups]
    return sorted(ranked, key=lambda contender: contender.median_ms)


def tied(ranked: list[Contender]) -> bool:
    """Whether the first two both have several repeats, and these overlap."""
    repeated = len(ranked) > 1 and all(len(one.totals_ms) > 1 for one in ranked[:2])
    return repeated and max(ranked[0].totals_ms) >= min(ranked[1].totals_ms)


def headline(ranked: list[Contender], steps: int = 1) -> str:
    """Which configuration is fastest and by how much, in ms per step with the interval of its repeats.

    steps: how many each trace holds.
    """
    if not ranked:
        return "No configuration was analysed completely, so there is no result."
    best, best_ms = ranked[0], f"{ranked[0].median_ms / steps:.1f} ms per step{_interval(ranked[0], steps)}"
    if len(ranked) == 1:
        return (
            f"Only {best.name} was analysed completely: {best_ms} (median over ranks), with nothing to "
            "compare it to."
        )
    second, second_ms = ranked[1], f"{ranked[1].median_ms / steps:.1f} ms"
    if tied(ranked):
        return (
            f"{best.name} is within noise of {second.name}: {best_ms} and {second_ms} are inside the spread "
            "of their repeats."
        )
    gap_percent = 100 * (second.median_ms / best.median_ms - 1)
    return (
        f"{best.name} is fastest: {best_ms} (median over ranks); the next, {second.name}, takes "
        f"{gap_percent:.1f} % longer ({second_ms})."
    )


def _interval(contender: Contender, steps: int) -> str:
    """` (10.1 to 10.4)`: 95 % of the mean over repeats; "" for one run."""
    _, low, high = mean_interval([total_ms / steps for total_ms in contender.totals_ms])
    return "" if math.isnan(low) else f" ({low:.1f} to {high:.1f})"


def certainty(ranked: list[Contender]) -> str | None:
    """What the repeats allow one to claim about the first two."""
    if len(ranked) < 2:
        return None
    runs = [len(one.totals_ms) for one in ranked[:2]]
    if min(runs) == 1:
        subject = "These are one run each"
        if max(runs) > 1:
            subject = "One of the first two has only one complete run"
        return f"{subject}: the order may be chance, so no claim of significance can be made without repeats."
    spans = [f"{min(one.totals_ms):.1f} to {max(one.totals_ms):.1f} ms" for one in ranked[:2]]
    counted = f"{runs[0]} repeats of the first range over {spans[0]}, {runs[1]} of the second over {spans[1]}"
    if tied(ranked):
        return f"The repeats overlap: {counted}."
    odds = math.comb(sum(runs), runs[0])
    return (
        f"The repeats do not overlap: {counted}. With two equal configurations this happens by chance once "
        f"in {plural(odds, 'sweep')}, more often if the best was picked from several."
    )


def uneven_steps(timeline: pd.DataFrame, configs: pd.DataFrame) -> str | None:
    """A sentence if the traces hold different numbers of steps, whose times do not compare."""
    steps = sorted(set(of_complete(timeline, configs)["steps"]))
    if len(steps) < 2:
        return None
    counts = " and ".join(map(str, steps))
    return f"The traces hold {counts} profiled steps: total times do not compare, so no configuration wins."
