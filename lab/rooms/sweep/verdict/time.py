"""Where the time goes over the whole sweep, and what is left out."""

from __future__ import annotations

import pandas as pd

from lab.core.words import first_few
from lab.rooms.sweep.names import long_name, name_of
from lab.rooms.sweep.tables import SETTING, copies

ON_CPU = (
    "These runs were on a CPU with gloo, which has no channels and no GPU threads: neither setting can have "
    "had an effect, so no configuration wins; CPU operators stand in for GPU kernels in every figure here."
)
ORIGIN = {
    "replayed": "The numbers are replayed from a recording made elsewhere.",
    "synthetic": "The numbers are synthetic: they test the path and measure no hardware.",
}


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
