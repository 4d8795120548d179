"""What the settings do to the GEMMs."""

from __future__ import annotations

import pandas as pd

from lab.core.words import plural
from lab.rooms.sweep.names import long_name, shape_name
from lab.rooms.sweep.tables import GEMM_SHAPE, SETTING, of_complete

NOTABLE = 0.05  # smallest change of a GEMM's median time to report


def gemm_change(gemm: pd.DataFrame, configs: pd.DataFrame) -> str | None:
    """How GEMM time differs between complete configurations, and which shape loses most."""
    rows = of_complete(gemm, configs)
    per_rank_ms = rows.groupby([*SETTING, "repeat", "rank"])["sum_us"].sum() / 1000
    totals_ms = per_rank_ms.groupby(SETTING).median().sort_values()
    if len(totals_ms) < 2:
        return None
    low, high = totals_ms.index[0], totals_ms.index[-1]
    sentence = (
        f"GEMMs take from {totals_ms.iloc[0]:.1f} ms per rank ({long_name(*low)}) to "
        f"{totals_ms.iloc[-1]:.1f} ms ({long_name(*high)}), {totals_ms.iloc[-1] / totals_ms.iloc[0]:.2f} "
        "times as long"
    )
    return sentence + _worst_shape(rows) + "."


def starved(gemm: pd.DataFrame, configs: pd.DataFrame) -> list[str]:
    """For each number, how many GEMM shapes its highest value slows against its lowest, all else equal."""
    sentences = []
    for knob in ("threads", "channel"):
        by_value = [*GEMM_SHAPE, *(name for name in SETTING if name != knob), knob]
        median_us = (
            of_complete(gemm, configs).groupby(by_value, dropna=False)["median_us"].median().unstack(knob)
        )
        if median_us.shape[1] < 2:
            continue
        low, high = median_us.columns[[0, -1]]
        ratio = (median_us[high] / median_us[low]).dropna().groupby(GEMM_SHAPE, dropna=False).median()
        if len(ratio):
            noun = "channels" if knob == "channel" else knob
            sentences.append(f"With {high} instead of {low} {noun}, {_ratio_words(ratio)}.")
    return sentences


def _worst_shape(rows: pd.DataFrame) -> str:
    median_us = (
        rows.groupby([*GEMM_SHAPE, *SETTING], dropna=False)["median_us"].median().unstack(SETTING).dropna()
    )
    if median_us.empty:
        return ""
    count = rows.groupby(GEMM_SHAPE, dropna=False)["n"].median().reindex(median_us.index)
    lost = ((median_us.max(axis=1) - median_us.min(axis=1)) * count).argmax()
    shape = median_us.index[lost]
    times_us = median_us.iloc[lost]
    return (
        f"; {shape_name(shape)} loses most, with a median of {times_us.min():.0f} µs against "
        f"{times_us.max():.0f} µs ({times_us.max() / times_us.min():.2f} times)"
    )


def _ratio_words(ratio: pd.Series) -> str:
    """`5 of 13 GEMM shapes take over 5 % longer (at most 15 %)`; `ratio` is new over old time per shape."""
    longer, shorter = int((ratio > 1 + NOTABLE).sum()), int((ratio < 1 - NOTABLE).sum())
    limit = f"over {100 * NOTABLE:.0f} %"
    if not longer and not shorter:
        return f"none of {plural(len(ratio), 'GEMM shape')} changes by {limit}"
    clauses = []
    if longer:
        verb, most_percent = "takes" if longer == 1 else "take", 100 * (ratio.max() - 1)
        shapes = plural(len(ratio), "GEMM shape")
        clauses.append(f"{longer} of {shapes} {verb} {limit} longer (at most {most_percent:.0f} %)")
    if shorter:
        verb, most_percent = "takes" if shorter == 1 else "take", 100 * (1 - ratio.min())
        clauses.append(f"{shorter} of {len(ratio)} {verb} {limit} less (at most {most_percent:.0f} %)")
    return " and ".join(clauses)
