"""Where the time goes over the whole sweep, and what is left out."""

from __future__ import annotations

import pandas as pd

from lab.core.words import first_few, plural
from lab.rooms.sweep.tables import GEMM_SHAPE, KEY, SETTING, copies, long_name, name_of, of_complete

ON_CPU = (
    "These runs were on a CPU with gloo, which has no channels and no GPU threads: neither setting can have "
    "had an effect, so no configuration wins; CPU operators stand in for GPU kernels in every figure here."
)
ORIGIN = {
    "replayed": "The numbers are replayed from a recording made elsewhere.",
    "synthetic": "The numbers are synthetic: they test the path and measure no hardware.",
}
NOTABLE = 0.05  # smallest change of a GEMM's median time to report


def exposed_shares(configs: pd.DataFrame) -> pd.Series:
    """Share by setting of the total time in which nothing hides the communication, least first."""
    complete = configs[configs["status"] == "ok"]
    shares = complete["exposed_comm_time_ms"] / complete["total_time_ms"]
    ordered: pd.Series = shares.groupby([complete[key] for key in SETTING]).median().dropna().sort_values()
    return ordered


def exposed_share(configs: pd.DataFrame) -> str | None:
    """How much of the total time is exposed communication."""
    shares = exposed_shares(configs)
    if shares.empty or not shares.max():
        return None
    low, high = (f"{100 * share:.0f} %" for share in (shares.iloc[0], shares.iloc[-1]))
    if low == high:
        return f"Exposed communication takes {low} of the total time in every configuration."
    return (
        f"Exposed communication takes from {low} of the total time ({long_name(*shares.index[0])}) to {high} "
        f"({long_name(*shares.index[-1])})."
    )


def left_out(configs: pd.DataFrame) -> list[str]:
    """The incomplete configurations by reason, and copies of a repeat; no comparison includes them."""
    by_reason: dict[str, list[str]] = {}
    for row in configs[configs["status"] != "ok"].itertuples():
        reason = f" ({row.reason})" if isinstance(row.reason, str) and row.reason else ""
        by_reason.setdefault(f"{row.status}{reason}", []).append(_run_name(row))
    sentences = [f"Left out, {reason}: {first_few(runs)}." for reason, runs in by_reason.items()]
    if names := [_run_name(row) for row in copies(configs).itertuples()]:
        sentences.append(
            f"No repeat of its own: {first_few(names)}, whose total time is that of an earlier repeat to the "
            "last digit."
        )
    return sentences


def on_cpu(timeline: pd.DataFrame) -> bool:
    return len(timeline) > 0 and bool((timeline["device"] == "cpu").all())


def _run_name(row: object) -> str:
    return f"{name_of(row)} (repeat {row.repeat})"  # type: ignore[attr-defined]


def gemm_totals_ms(gemm: pd.DataFrame, configs: pd.DataFrame) -> pd.Series:
    """GEMM time of a rank in each complete setting, median over ranks and repeats, least first."""
    by_rank_us = of_complete(gemm, configs).groupby([*KEY, "rank"])["sum_us"].sum()
    totals: pd.Series = by_rank_us.groupby(SETTING).median().sort_values() / 1000
    return totals


def gemm_change(gemm: pd.DataFrame, configs: pd.DataFrame) -> str | None:
    """How GEMM time differs between complete configurations."""
    totals_ms = gemm_totals_ms(gemm, configs)
    if len(totals_ms) < 2:
        return None
    low, high = totals_ms.index[0], totals_ms.index[-1]
    ratio = totals_ms.iloc[-1] / totals_ms.iloc[0]
    return (
        f"GEMMs take from {totals_ms.iloc[0]:.1f} ms per rank ({long_name(*low)}) to "
        f"{totals_ms.iloc[-1]:.1f} ms ({long_name(*high)}), {ratio:.2f} times as long."
    )


def starved(gemm: pd.DataFrame, configs: pd.DataFrame) -> list[str]:
    """Count for each number the GEMM shapes that its highest value slows against its lowest."""
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


def _ratio_words(ratio: pd.Series) -> str:
    """`5 of 13 GEMM shapes take over 5 % longer (at most 15 %)`; `ratio` is new over old time per shape."""
    longer, shorter = int((ratio > 1 + NOTABLE).sum()), int((ratio < 1 - NOTABLE).sum())
    limit, shapes = f"over {100 * NOTABLE:.0f} %", plural(len(ratio), "GEMM shape")
    clauses = [
        f"{count} of {shapes} {'takes' if count == 1 else 'take'} {limit} {direction} "
        f"(at most {percent:.0f} %)"
        for count, direction, percent in (
            (longer, "longer", 100 * (ratio.max() - 1)),
            (shorter, "less", 100 * (1 - ratio.min())),
        )
        if count
    ]
    return " and ".join(clauses) or f"none of {shapes} changes by {limit}"
