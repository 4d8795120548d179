"""Where the time goes over the whole sweep, and what is left out."""

from __future__ import annotations

import pandas as pd

from lab.core.words import first_few
from lab.rooms.sweep.names import long_name, name_of
from lab.rooms.sweep.tables import SETTING, copies
from lab.rooms.sweep.verdict.ranking import Contender


def exposed_share(configs: pd.DataFrame) -> str | None:
    """How much of the total time is communication that no computation hides."""
    complete = configs[configs["status"] == "ok"]
    share = (complete["exposed_comm_time_ms"] / complete["total_time_ms"]).groupby(
        [complete[key] for key in SETTING]
    )
    shares = share.median().dropna().sort_values()
    if shares.empty or not shares.max():
        return None
    low, high = shares.index[0], shares.index[-1]
    if f"{shares.iloc[0]:.2f}" == f"{shares.iloc[-1]:.2f}":
        percent = 100 * shares.iloc[0]
        return f"Exposed communication takes {percent:.0f} % of the total time in every configuration."
    return (
        f"Exposed communication takes from {100 * shares.iloc[0]:.0f} % of the total time "
        f"({long_name(*low)}) to {100 * shares.iloc[-1]:.0f} % ({long_name(*high)})."
    )


def left_out(configs: pd.DataFrame) -> list[str]:
    """The incomplete configurations by reason; no comparison includes them."""
    by_reason: dict[str, list[str]] = {}
    for row in configs[configs["status"] != "ok"].itertuples():
        reason = f" ({row.reason})" if isinstance(row.reason, str) and row.reason else ""
        case = f"{name_of(row)} (repeat {row.repeat})"
        by_reason.setdefault(f"{row.status}{reason}", []).append(case)
    return [f"Left out, {reason}: {first_few(cases)}." for reason, cases in by_reason.items()]


def copied(configs: pd.DataFrame) -> list[str]:
    """The repeats that are copies of an earlier one; none counts as a run of its own."""
    names = [f"{name_of(row)} (repeat {row.repeat})" for row in copies(configs).itertuples()]
    return [
        f"No repeat of its own: {name}, whose total time is that of an earlier repeat to the last digit."
        for name in [first_few(names)]
        if names
    ]


def on_cpu(timeline: pd.DataFrame) -> bool:
    return len(timeline) > 0 and bool((timeline["device"] == "cpu").all())


def cpu_only(ranked: list[Contender]) -> list[str]:
    """What CPU runs can tell instead of a winner: gloo has neither channels nor GPU threads."""
    sentences = [
        "These runs were on a CPU with gloo, which has no channels and no GPU threads: neither setting can "
        "have had an effect, so no configuration wins.",
        "CPU operators stand in for GPU kernels in every figure here.",
    ]
    if len(ranked) > 1:
        sentences.append(
            f"Total times from {ranked[0].median_ms:.1f} to {ranked[-1].median_ms:.1f} ms show this "
            "machine's own variation."
        )
    return sentences


def origin(kind: str) -> str | None:
    """Where the numbers come from, if this run did not measure them."""
    return {
        "replayed": "The numbers are replayed from a recording made elsewhere.",
        "synthetic": "The numbers are synthetic: they test the path and measure no hardware.",
    }.get(kind)
