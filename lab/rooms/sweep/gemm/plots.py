"""The five plots of the original sweep, and the slowdown beside collectives.

Settings come from the data and are ordered by number. One that was run but has no GEMM in the list is shown
as `no data`, not as 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lab.report.figures import distributions, lines, ranges
from lab.rooms.sweep.tables import SETTING, name_of

AXIS = "max − min of a GEMM's time, µs"
KNOBS = {"threads": "threads", "channel": "channels", "rank": "ranks"}
MOST_ROWS = 40
_LINE = ["threads", "algorithm", "protocol"]
UNKNOWN = "unknown"
Draw = Callable[[pd.DataFrame, pd.DataFrame], Figure]


def settings_of(top: pd.DataFrame, traces: pd.DataFrame) -> pd.DataFrame:
    """Setting and rank of every row of `top` and of every trace that was read."""
    parts = [part.reindex(columns=[*SETTING, "rank"]) for part in (top, traces) if len(part)]
    settings: pd.DataFrame = pd.concat(parts).drop_duplicates()
    return settings


def slowdown_plot(effects: pd.DataFrame) -> Figure | None:
    """The slowdown of each GEMM beside a collective, largest first; None if nothing was compared."""
    compared = effects.dropna(subset=["slowdown"])
    if compared.empty:
        return None
    shown = compared.sort_values("slowdown", ascending=False).head(MOST_ROWS)
    labels = [f"{name_of(row)}  {row.op} {row.M}×{row.N}×{row.K}" for row in shown.itertuples()]
    spans = list(shown[["ci_low", "slowdown", "ci_high"]].itertuples(index=False, name=None))
    # An interval that holds 1 does not show a slowdown.
    roles = ["communication" if low > 1 else "unknown" for low, _, _ in spans]
    axis = "time under a concurrent collective ÷ time without (95 % interval)"
    return ranges(labels, spans, axis=axis, reference=1.0, roles=roles)


def _by(knob: str) -> Draw:
    def draw(top: pd.DataFrame, settings: pd.DataFrame) -> Figure:
        title = f"Time difference of the most varying GEMMs by {KNOBS[knob]}"
        return distributions([title], [_groups(top, settings, knob)], axis=AXIS)

    return draw


def _violins(top: pd.DataFrame, settings: pd.DataFrame) -> Figure:
    titles = [f"by {words}" for words in KNOBS.values()]
    return distributions(titles, [_groups(top, settings, knob) for knob in KNOBS], axis=AXIS, violins=True)


def _interaction(top: pd.DataFrame, settings: pd.DataFrame) -> Figure:
    channels = sorted(settings["channel"].dropna().unique())
    means = top.groupby(SETTING)["time_diff_us"].mean().unstack("channel").reindex(columns=channels)
    series = {}
    for threads, algorithm, protocol in sorted(set(settings[_LINE].itertuples(index=False, name=None))):
        label = "threads unknown" if _value("threads", threads) == UNKNOWN else f"{int(threads)} threads"
        row = means.reindex([(threads, algorithm, protocol)]).to_numpy()[0]
        series[" ".join(filter(None, (label, algorithm, protocol)))] = row
    return lines(
        [_value("channel", channel) for channel in channels],
        series,
        across="channels",
        axis=f"mean of {AXIS}",
        title="Threads and channels together",
    )


def _groups(top: pd.DataFrame, settings: pd.DataFrame, knob: str) -> dict[str, np.ndarray]:
    values_us = dict(list(top.groupby(knob)["time_diff_us"]))
    empty = pd.Series(dtype=float)
    values = sorted(settings[knob].dropna().unique())
    return {_value(knob, value): values_us.get(value, empty).to_numpy() for value in values}


def _value(knob: str, value: float) -> str:
    """A setting as an axis shows it: threads and channels that were not recorded are 0, such a rank is -1."""
    return UNKNOWN if value < (0 if knob == "rank" else 1) else str(int(value))


VARIANCE: dict[str, Draw] = {
    "variance_by_threads_boxplot": _by("threads"),
    "variance_by_channels_boxplot": _by("channel"),
    "variance_by_ranks_boxplot": _by("rank"),
    "variance_violin_combined": _violins,
    "variance_thread_channel_interaction": _interaction,
}
