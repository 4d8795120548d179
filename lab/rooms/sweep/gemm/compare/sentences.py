"""The comparison in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from lab.core.words import first_few, plural
from lab.rooms.sweep.gemm.compare.changes import SIGNIFICANT, repeats_needed
from lab.rooms.sweep.gemm.compare.sweeps import Sweep
from lab.rooms.sweep.names import name_of

UNPROVEN = {
    "one run each": "with one run each this may be chance, and nothing can be claimed",
    "too few repeats": "the repeats are too few for any test to reach significance",
    "no difference shown": "this is within the spread of the repeats",
}


def compared_in_words(
    configs: pd.DataFrame, gemm: pd.DataFrame, environment: pd.DataFrame, base: Sweep, others: Sequence[Sweep]
) -> list[str]:
    """Per sweep what changed against the base, then what else differs."""
    sentences = []
    for other in others:
        rows = configs[(configs["other"] == other.label) & configs["change_percent"].notna()]
        sentences.append(_headline(rows, base.label, other.label))
        sentences += _gemm_sentence(gemm[gemm["other"] == other.label], base.label, other.label)
    steps = environment[environment["what"] == "profiled steps (trace)"]
    if (steps["state"] == "differs").any():
        sentences.insert(0, "The sweeps profiled different numbers of steps: total times do not compare.")
    differs = environment.loc[environment["state"] == "differs", "what"]
    if len(differs):
        sentences.append(f"What else differs: {first_few(list(differs), most=6)}.")
    else:
        sentences.append("Nothing else that was recorded about their environment differs.")
    return sentences


def _headline(rows: pd.DataFrame, base: str, other: str) -> str:
    if rows.empty:
        return f"{base} and {other} have no complete configuration in common."
    proven = rows[rows["judgement"].isin(["faster", "slower"])]
    if len(proven):
        return f"{other} against {base}: {_proven_words(proven, num_unproven=len(rows) - len(proven))}."
    low, high = rows["change_percent"].min(), rows["change_percent"].max()
    change = f"{low:+.1f} %" if low == high else f"{low:+.1f} to {high:+.1f} %"
    return (
        f"{other} against {base}: total time changes by {change} over "
        f"{plural(len(rows), 'configuration')}; {UNPROVEN[rows['judgement'].mode()[0]]}{_advice(rows)}."
    )


def _advice(rows: pd.DataFrame) -> str:
    """What these repeats could have shown, and what design could show more."""
    tested = int(rows["p_value"].notna().sum())
    if not tested:
        return "; 4 fresh runs of one pair of settings each, named beforehand, could show a difference"
    least = float(rows["least_p_holm"].min())
    if least <= SIGNIFICANT:
        return ""
    needed = repeats_needed(tested)
    return (
        f": over {plural(tested, 'comparison')} the least p that they can give is {least:.2f} after Holm, so "
        f"{SIGNIFICANT:g} is out of reach whatever the difference. {needed} repeats of each would reach it; "
        f"or compare the best alone with fresh runs ({repeats_needed(1)} of each)"
    )


def _proven_words(proven: pd.DataFrame, num_unproven: int) -> str:
    rows: list[Any] = list(proven.itertuples())
    changes = [f"{name_of(row)} {row.judgement} by {abs(row.change_percent):.1f} %" for row in rows]
    if not num_unproven:
        return ", ".join(changes)
    verb = "shows" if num_unproven == 1 else "show"
    return f"{', '.join(changes)}; the other {num_unproven} {verb} no difference"


def _gemm_sentence(gemm: pd.DataFrame, base: str, other: str) -> list[str]:
    clear = gemm[(gemm["ci_low_percent"] > 0) | (gemm["ci_high_percent"] < 0)]
    if clear.empty:
        return []
    top = next(clear.itertuples())
    return [
        f"Of {plural(len(gemm), 'GEMM')} (shape and configuration), {len(clear)} differ over ranks between "
        f"{other} and {base}; the largest change is {top.gemm} at {name_of(top)}: {top.median_base_us:.0f} → "
        f"{top.median_other_us:.0f} µs ({top.change_percent:+.0f} %)."
    ]
