"""What the spread of GEMM times goes with: order-free shares, and the effect of a collective within cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lab.rooms.sweep.gemm.columns import GROUP
from lab.rooms.sweep.gemm.variance.attribution import (
    Attribution,
    Effect,
    Sums,
    attribution,
    effect_within,
    sums_of,
)
from lab.stats.robust import median

OTHER_SHARE = 0.1
# Two factors that share more than this of the spread cannot be told apart by variance.
CONFOUNDED = 0.5
FACTORS = ("overlap", "rank", "other_kernels", "step")
CLOCK = "clocks"  # a factor where the GPU's clock was sampled beside every instance
WORDS = {
    CLOCK: "the clock of its GPU",
    "overlap": "a collective beside it",
    "rank": "which rank (its GPU, host or clock)",
    "other_kernels": "other kernels beside it",
    "step": "which step",
    "unexplained": "nothing that the trace shows",
}
SHARES = [
    *(f"{name}_share" for name in FACTORS),
    *(f"{name}_unique" for name in FACTORS[:2]),
    *("shared_share", "clocks_share", "unexplained_share", "verdict"),
]


@dataclass(frozen=True)
class Pooled:
    """One configuration, all shapes: shares of the spread within shapes, and the slowdown within cells."""

    shares: Attribution
    effect: Effect


def shares(rows: pd.DataFrame) -> dict[str, Any]:
    """What one GEMM's spread in one configuration goes with; shares and unexplained add up to 1.

    Factors: the share of its time beside a collective, the rank, other kernels beside it for 10 % of its time
    or more, the step, and the GPU's clock where it was sampled. The shares do not depend on an order; what
    two factors have in common is split between
    them, so what each adds alone stands beside.
    """
    dur_us = rows["dur_ns"].to_numpy() / 1000
    names = factors_of(rows)
    sums = _sums(rows, names)
    num_columns = sum(len(columns) for columns in sums.columns.values())
    # With about as many columns as instances any fit is perfect.
    found = attribution([sums] if len(rows) > num_columns + 2 else [], names)
    return {
        "n": len(rows),
        "median_us": median(dur_us),
        "std_us": float(dur_us.std(ddof=1)) if len(dur_us) > 1 else np.nan,
        "time_spread_us2": float(((dur_us - dur_us.mean()) ** 2).sum()),
        **{f"{name}_share": found.share[name] for name in FACTORS},
        **{f"{name}_unique": found.unique[name] for name in FACTORS[:2]},
        "shared_share": found.shared,
        "clocks_share": found.share.get(CLOCK, np.nan),
        "unexplained_share": found.unexplained,
        "verdict": _verdict(found),
    }


def pooled(rows: pd.DataFrame) -> Pooled:
    """All GEMMs of one configuration together; intervals by rank and step, never by instance."""
    numbered = rows.assign(cluster=rows.groupby(["repeat", "rank", "step"], sort=True).ngroup())
    names = factors_of(rows)
    groups = [_sums(group, names) for _, group in numbered.groupby(GROUP, observed=True, sort=True)]
    cells = numbered.groupby([*GROUP, "repeat", "rank", "step"], observed=True, sort=True).ngroup()
    return Pooled(
        attribution(groups, names),
        effect_within(
            numbered["dur_ns"].to_numpy() / 1000,
            numbered["comm_share"].to_numpy(dtype=float),
            cells.to_numpy(),
            numbered["cluster"].to_numpy(),
        ),
    )


def in_words(found: Pooled) -> str:
    """The slowdown with its interval, then what the spread goes with and what cannot be told apart."""
    effect, parts = found.effect, []
    if not np.isnan(effect.ratio):
        interval = f" ({effect.low:.2f} to {effect.high:.2f})" if not np.isnan(effect.low) else ""
        parts.append(
            f"within rank and step a GEMM takes {effect.ratio:.2f} times as long beside a collective"
            f"{interval}, seen in {effect.cells} of {effect.num_cells} cells"
        )
    if np.isnan(found.shares.unexplained):
        return "; ".join([*parts, "the times of a shape do not vary"])
    parts.append(f"of the variance within shapes {_list(found.shares)} (order-free shares)")
    if confounded(found.shares):
        first, second = (WORDS[name].partition(" (")[0] for name in found.shares.pair)
        percent = 100 * found.shares.shared
        parts.append(
            f"{first} and {second} cannot be told apart by variance: they share {percent:.0f} % of it"
        )
    return "; ".join(parts)


def confounded(found: Attribution) -> bool:
    return found.shared > CONFOUNDED


def factors_of(rows: pd.DataFrame) -> tuple[str, ...]:
    """The factors of these instances: with the clock only where every one of them has it."""
    known = "clock_mhz" in rows and bool(rows["clock_mhz"].notna().all()) and len(rows) > 0
    return (*FACTORS, CLOCK) if known else FACTORS


def _sums(rows: pd.DataFrame, names: tuple[str, ...]) -> Sums:
    length_ns = np.maximum((rows["end_ns"] - rows["ts_ns"]).to_numpy(), 1)
    if "cluster" in rows:
        clusters = rows["cluster"].to_numpy()
    else:
        clusters = rows.groupby(["repeat", "rank", "step"], sort=True).ngroup().to_numpy()
    factors = {
        "overlap": rows["comm_share"].to_numpy(dtype=float),
        "rank": rows["rank"].to_numpy(dtype=int),
        "other_kernels": (rows["other_ns"].to_numpy() / length_ns >= OTHER_SHARE).astype(int),
        "step": rows["step"].to_numpy(dtype=int),
    }
    if CLOCK in names:
        clock = rows["clock_mhz"].to_numpy(dtype=float)
        factors[CLOCK] = clock - clock.mean()
    return sums_of(rows["dur_ns"].to_numpy() / 1000, factors, clusters)


def _list(found: Attribution) -> str:
    """`a collective beside it 50 % (46 to 67), which rank 46 %`, for shares of 1 % and more."""
    texts = []
    for name, share in _ranked(found):
        low, high = found.low.get(name, np.nan), found.high.get(name, np.nan)
        edges = "" if np.isnan(low) else f" ({100 * low:.0f} to {100 * high:.0f})"
        if share >= 0.01:
            texts.append(f"{WORDS[name].partition(' (')[0]} {100 * share:.0f} %{edges}")
    return ", ".join(texts)


def _verdict(found: Attribution) -> str:
    """The factors of 10 % and more, largest first, and whether two of them cannot be told apart."""
    if np.isnan(found.unexplained):
        return "too few instances, or no spread"
    named = ", ".join(f"{100 * share:.0f} % {WORDS[name]}" for name, share in _ranked(found) if share >= 0.1)
    doubt = f"; {' and '.join(found.pair)} cannot be told apart" if confounded(found) else ""
    return named + doubt


def _ranked(found: Attribution) -> Iterable[tuple[str, float]]:
    every = {**found.share, "unexplained": found.unexplained}
    return sorted(every.items(), key=lambda item: -item[1])
