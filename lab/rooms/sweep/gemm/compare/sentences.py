"""The comparison in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from lab.core.words import first_few, plural
from lab.rooms.sweep.gemm.compare.changes import (
    SIGNIFICANT,
    copied_repeats,
    gemms_in_one,
    repeats_needed,
    shared_repeats,
    steps_differ,
)
from lab.rooms.sweep.gemm.compare.sweeps import Sweep
from lab.rooms.sweep.names import name_of

UNPROVEN = {
    "one run each": "with one run each this may be chance, and nothing can be claimed",
    "one run on one side": "with one run on one side this may be chance, and nothing can be claimed",
    "other numbers of steps": "they hold different numbers of steps, and do not compare",
    "too few repeats": "the repeats are too few for any test to reach significance",
    "no difference shown": "this is within the spread of the repeats",
}


def compared_in_words(
    configs: pd.DataFrame, gemm: pd.DataFrame, environment: pd.DataFrame, base: Sweep, heads: Sequence[Sweep]
) -> list[str]:
    """Per sweep what changed against the base, then what else differs."""
    sentences = [f"{one.label}: {one.host_bound}" for one in (base, *heads) if one.host_bound]
    for head in heads:
        rows = configs[(configs["other"] == head.label) & configs["change_percent"].notna()]
        sentences.append(_headline(rows, base.label, head.label))
        sentences += _unmatched(configs[configs["other"] == head.label], base.label, head.label)
        if not steps_differ(base, head):
            sentences += _gemm_sentence(gemm[gemm["other"] == head.label], base.label, head.label)
        if lone := gemms_in_one(base, head):
            sentences.append(
                f"{plural(lone, 'GEMM')} (shape and configuration) of {base.label} and {head.label} "
                f"{'is' if lone == 1 else 'are'} in one of them only, and not compared."
            )
    steps = environment[environment["what"] == "profiled steps (trace)"]
    if (steps["state"] == "differs").any():
        sentences.insert(0, "The sweeps profiled different numbers of steps: total times do not compare.")
    differs = environment.loc[environment["state"] == "differs", "what"]
    if len(differs):
        sentences.append(f"What else differs: {first_few(list(differs), limit=6)}.")
    else:
        sentences.append("Nothing else that was recorded about their environment differs.")
    bare = [one.label for one in (base, *heads) if "host name" not in one.environment]
    if bare:
        sentences.append(
            f"{first_few(bare)}: not recorded by lab: host, driver, clocks, image and settings are unknown."
        )
    return sentences


def not_compared(base: Sweep, heads: Sequence[Sweep], configs: pd.DataFrame) -> list[str]:
    """What keeps the comparison from being whole, one sentence each."""
    sentences = [
        f"{sweep.label}: {plural(copies, 'total time')} equal to that of an earlier repeat to the last "
        "digit: "
        "copies of one recording count once"
        for sweep in (base, *heads)
        if (copies := copied_repeats(sweep))
    ]
    for head in heads:
        pair = f"{base.label} and {head.label}"
        if steps_differ(base, head):
            sentences.append(f"{pair} profiled different numbers of steps: total times do not compare")
        if shared := shared_repeats(base, head):
            sentences.append(
                f"{pair}: {plural(shared, 'total time')} equal to the last digit: copies of one recording, "
                "which are no repeats"
            )
        lone = configs[(configs["other"] == head.label) & (configs["judgement"] == "not in both")]
        if len(lone):
            names = first_few([name_of(row) for row in lone.itertuples()])
            sentences.append(f"{pair}: {plural(len(lone), 'configuration')} not complete in both: {names}")
    return sentences


def _unmatched(rows: pd.DataFrame, base: str, head_label: str) -> list[str]:
    lone = rows[rows["judgement"] == "not in both"]
    if lone.empty:
        return []
    names = first_few([name_of(row) for row in lone.itertuples()])
    return [f"Not compared, because complete in {base} or {head_label} alone: {names}."]


def _headline(rows: pd.DataFrame, base: str, head_label: str) -> str:
    if rows.empty:
        return f"{base} and {head_label} have no complete configuration in common."
    proven = rows[rows["judgement"].isin(["faster", "slower"])]
    if len(proven):
        unproven = rows[~rows["judgement"].isin(["faster", "slower"])]
        unproven_text = f"; of the other {len(unproven)}, {_why_unproven(unproven)}" if len(unproven) else ""
        return f"{head_label} against {base}: {_proven_words(proven)}{unproven_text}."
    low, high = rows["change_percent"].min(), rows["change_percent"].max()
    change = f"{low:+.1f} %" if low == high else f"{low:+.1f} to {high:+.1f} %"
    return (
        f"{head_label} against {base}: total time changes by {change} over "
        f"{plural(len(rows), 'configuration')}; {_why_unproven(rows)}{_advice(rows)}."
    )


def _why_unproven(rows: pd.DataFrame) -> str:
    """Why nothing is claimed, by kind of reason; what the repeats exclude where they could show a change."""
    counts = rows["judgement"].value_counts()
    if len(counts) > 1:
        words = [f"{n} of {len(rows)}: {UNPROVEN[str(why)]}" for why, n in counts.items()]
    else:
        words = [UNPROVEN[str(counts.index[0])]]
    judged = rows[rows["judgement"] == "no difference shown"]
    low, high = judged["repeats_low_percent"].min(), judged["repeats_high_percent"].max()
    possible = f", which leave {low:+.1f} to {high:+.1f} % possible" if len(judged) else ""
    return "; ".join(words) + possible


def _advice(rows: pd.DataFrame) -> str:
    """What these repeats could have shown, and what design could show more."""
    tested = int(rows["p_value"].notna().sum())
    if not tested:
        return "; 4 fresh runs of one pair of settings each, named beforehand, could show a difference"
    least_p = float(rows["least_p_holm"].min())
    if least_p <= SIGNIFICANT:
        return ""
    needed = repeats_needed(tested)
    return (
        f": over {plural(tested, 'comparison')} the least p that they can give is {least_p:.2f} after Holm, "
        "so "
        f"{SIGNIFICANT:g} is out of reach whatever the difference. {needed} repeats of each would reach it; "
        f"or compare the best alone with fresh runs ({repeats_needed(1)} of each)"
    )


def _proven_words(proven: pd.DataFrame) -> str:
    rows: list[Any] = list(proven.itertuples())
    return ", ".join(f"{name_of(row)} {row.judgement} by {abs(row.change_percent):.1f} %" for row in rows)


def _gemm_sentence(gemm: pd.DataFrame, base: str, head_label: str) -> list[str]:
    clear = gemm[(gemm["ci_low_percent"] > 0) | (gemm["ci_high_percent"] < 0)]
    if clear.empty:
        return []
    top = next(clear.itertuples())
    return [
        f"Of {plural(len(gemm), 'GEMM')} (shape and configuration), {len(clear)} differ over ranks between "
        f"{head_label} and {base}; the largest change is {top.gemm} at {name_of(top)}: "
        f"{top.median_base_us:.0f} → {top.median_other_us:.0f} µs ({top.change_percent:+.0f} %)."
    ]
