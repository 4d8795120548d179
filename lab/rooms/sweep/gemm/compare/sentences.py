"""The comparison as sentences."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lab.core.words import first_few, plural
from lab.rooms.sweep.gemm.compare.changes import (
    NO_DIFFERENCE,
    NOT_IN_BOTH,
    PROVEN,
    SIGNIFICANT,
    TOO_FEW,
    UNEVEN,
    Sweep,
    repeats_needed,
    shared_repeats,
    steps_differ,
)
from lab.rooms.sweep.tables import name_of
from lab.rooms.sweep.verdict.time import left_out

UNPROVEN = {
    UNEVEN: "they hold different numbers of steps, and do not compare",
    TOO_FEW: "with so few repeats this may be chance, and nothing can be claimed",
    NO_DIFFERENCE: "this is within the spread of the repeats",
}


def compared_in_words(
    configs: pd.DataFrame, environment: pd.DataFrame, base: Sweep, heads: Sequence[Sweep]
) -> list[str]:
    """Per sweep what changed against the base, then what else differs."""
    sentences = [f"{sweep.label}: {sweep.host_bound}" for sweep in (base, *heads) if sweep.host_bound]
    for head in heads:
        pair = f"{base.label} and {head.label}"
        rows = configs[(configs["other"] == head.label) & configs["change_percent"].notna()]
        sentences.append(
            f"{head.label} against {base.label}: {_changes(rows)}."
            if len(rows)
            else f"{pair} have no complete configuration in common."
        )
    differs = list(environment.loc[environment["state"] == "differs", "what"])
    facts = (
        f"differs in {first_few(differs, limit=6)}" if differs else "is the same as far as it was recorded"
    )
    sentences.append(f"Their environment {facts}.")
    if bare := [sweep.label for sweep in (base, *heads) if "host name" not in sweep.environment]:
        sentences.append(
            f"{first_few(bare)}: not recorded by lab: host, driver, clocks, image and settings are unknown."
        )
    return sentences


def not_compared(base: Sweep, heads: Sequence[Sweep], configs: pd.DataFrame) -> list[str]:
    """What keeps the comparison from being whole, one sentence each."""
    sentences = [
        f"{sweep.label}: {text}" for sweep in (base, *heads) for text in left_out(sweep.tables.configs)
    ]
    for head in heads:
        pair = f"{base.label} and {head.label}"
        if steps_differ(base, head):
            sentences.append(f"{pair} profiled different numbers of steps: times do not compare")
        if shared := shared_repeats(base, head):
            sentences.append(
                f"{pair}: {plural(shared, 'total time')} equal to the last digit: copies of one recording, "
                "which count once"
            )
        lone = configs[(configs["other"] == head.label) & (configs["judgement"] == NOT_IN_BOTH)]
        if len(lone):
            names = first_few([name_of(row) for row in lone.itertuples()])
            sentences.append(f"{pair}: {plural(len(lone), 'configuration')} not complete in both: {names}")
    return sentences


def _changes(rows: pd.DataFrame) -> str:
    """The proven changes, then the range of the others, why they are unproven, and what would show more."""
    proven = rows[rows["judgement"].isin(PROVEN)]
    clauses = [
        f"{name_of(row)} {row.judgement} by {abs(row.change_percent):.1f} %" for row in proven.itertuples()
    ]
    unproven = rows.drop(proven.index)
    for judgement, judged in unproven.groupby("judgement"):
        low, high = judged["change_percent"].min(), judged["change_percent"].max()
        change = f"{low:+.1f} %" if low == high else f"{low:+.1f} to {high:+.1f} %"
        clause = (
            f"a step changes by {change} in {plural(len(judged), 'configuration')}: {UNPROVEN[judgement]}"
        )
        if judgement == NO_DIFFERENCE:
            edges = judged["repeats_low_percent"].min(), judged["repeats_high_percent"].max()
            clause += f", which leave {edges[0]:+.1f} to {edges[1]:+.1f} % possible"
        if judgement == TOO_FEW:
            clause += f" ({_advice(rows)})"
        clauses.append(clause)
    return "; ".join(clauses)


def _advice(rows: pd.DataFrame) -> str:
    """What these repeats could have shown, and how many could show more."""
    tested = int(rows["p_value"].notna().sum())
    single = f"{repeats_needed(1)} fresh runs of one pair of settings each, named beforehand, could show one"
    if not tested:
        return single
    return (
        f"over {plural(tested, 'comparison')} their least p is {rows['least_p_holm'].min():.2f} after Holm, "
        f"{SIGNIFICANT:g} would take {repeats_needed(tested)} repeats of each; {single}"
    )
