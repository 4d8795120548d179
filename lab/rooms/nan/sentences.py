"""What the page says first: sentences from tables, each true of this folder and traceable to its row."""

from __future__ import annotations

from collections.abc import Sequence

from lab.core.words import plural
from lab.rooms.nan.analyze import NanTables
from lab.rooms.nan.evidence import Evidence
from lab.rooms.nan.nixnan.grammar import shown
from lab.rooms.nan.nixnan.log import nan_sites, totals
from lab.rooms.nan.verdict import SEVERITY


def sentences(tables: NanTables) -> list[str]:
    """The verdict, its reasons, and what cannot be compared."""
    return [
        headline(tables),
        *births(tables),
        *cures(tables),
        *instructions(tables),
        *ties(tables),
        *left_out(tables.evidence),
        *incomplete_logs(tables.evidence),
    ]


def headline(tables: NanTables) -> str:
    """The furthest that bad numbers got in a comparable experiment."""
    frame = tables.experiments
    able = frame[frame["rank"].notna()]
    if able.empty:
        statuses = [f"{row.experiment} {row.status}" for row in frame.itertuples()]
        return f"No experiment can be compared: {listed(statuses)}."
    worst = max(able["verdict"], key=SEVERITY.__getitem__)
    of_worst = able[able["verdict"].map(SEVERITY) == SEVERITY[worst]]
    names, all_of_them = listed(list(of_worst["experiment"])), plural(len(able), "comparable experiment")
    if SEVERITY[worst] == 3:
        return f"NaN or infinity reaches the logits in {names} ({len(of_worst)} of {all_of_them})."
    if SEVERITY[worst] == 2:
        return f"NaN or infinity is in module outputs of {names}, but not in the logits."
    if SEVERITY[worst] == 1:
        return f"NaN is stored to memory in {names}, but no watched module and no logit holds one."
    if (able["verdict"] == "masked-intermediate").any():
        return (
            "NaN and infinity occur inside kernels and never leave them: none stored by an instrumented "
            "store, none in a watched module, none in the logits. They are masked intermediates, and no "
            "experiment is better or worse by them."
        )
    return f"No NaN and no infinity in any output of {all_of_them}."


def births(tables: NanTables) -> list[str]:
    """The first producer of each experiment that has one; experiments that agree share a sentence."""
    shared: dict[str, list[str]] = {}
    for experiment in tables.evidence:
        if not (birth := experiment.birth):
            continue
        sentence = f"first born {birth['place']} ({birth['phase']}, step {birth['step']})"
        if cause := tables.causes.get(experiment.label):
            sentence += f": {cause.text} ({cause.confidence}; {cause.evidence})"
        planted = ((experiment.result or {}).get("planted") or {}).get("expected", "")
        if planted and birth["module"] == planted:
            sentence += f". This is what was planted: {planted}"
        shared.setdefault(sentence, []).append(experiment.label)
    return [f"{listed(labels)}: {sentence}." for sentence, labels in shared.items()]


def cures(tables: NanTables) -> list[str]:
    """Which change kept the logits finite where another did not: the same weights, one thing different."""
    base = tables.baseline
    able = [experiment for experiment in tables.evidence if experiment.compared]
    bad, good = (
        [experiment for experiment in able if tables.chains[experiment.label].logits[0] == state]
        for state in ("yes", "no")
    )
    if not bad or not good or base is None:
        return []
    if base in bad:
        kept_text = listed([*map(_with_types, good)])
        return [f"{kept_text} kept the logits finite where {_with_types(base)} did not."]
    names, kept_text = (
        listed([experiment.label for experiment in experiments]) for experiments in (bad, good)
    )
    sentence = f"The same weights stay finite in {kept_text}; what breaks them is {names}."
    if base.effective.get("attention") == "sdpa" and any(
        experiment.experiment == "eager" for experiment in bad
    ):
        sentence += " Fused attention (sdpa) never writes the scores in half: sdpa cures it."
    return [sentence]


def _with_types(experiment: Evidence) -> str:
    if not (effective := experiment.effective):
        return experiment.label
    return f"{experiment.label} ({', '.join(effective.get('dtypes', []))}, {effective.get('attention', '')})"


def instructions(tables: NanTables) -> list[str]:
    """Where the instructions' NaN are, by function, for the baseline or the first log."""
    logs = [
        experiment
        for experiment in tables.evidence
        if experiment.log is not None and experiment.log.functions
    ]
    if not logs:
        return []
    experiment = tables.baseline if tables.baseline in logs else logs[0]
    assert experiment is not None and experiment.log is not None
    lines = plural(experiment.log.error_lines, "line")
    nans = {name: count for (name, kind), count in experiment.log.function_kinds.items() if kind == "NaN"}
    if not nans:
        return [f"{experiment.label}: {lines} of nixnan, none of them NaN."]
    sites = nan_sites(experiment.log)
    top = sorted(nans.items(), key=lambda item: -item[1])[:3]
    parts = listed([f"{shown(name)} {count:,} ({plural(sites.get(name, 0), 'site')})" for name, count in top])
    with_nan = plural(totals(experiment.log)["NaN"], "line")
    return [
        f"{experiment.label}: {lines} at {plural(experiment.log.site_count, 'site')}, "
        f"{with_nan} with NaN: {parts}."
    ]


def ties(tables: NanTables) -> list[str]:
    frame = tables.experiments
    best = frame[frame["rank"] == 1]
    if len(best) < 2:
        return []
    names = f"{len(best)} experiments share the first rank ({listed(list(best['experiment']))})"
    if SEVERITY[best["verdict"].iloc[0]] == 0:
        return [f"{names}: zero cannot be improved."]
    return [f"{names}: bad numbers get as far in each of them."]


def left_out(evidence: Sequence[Evidence]) -> list[str]:
    return [
        f"Not compared: {experiment.label}, {experiment.status}"
        f"{f' ({experiment.reason})' if experiment.reason else ''}."
        for experiment in evidence
        if not experiment.compared
    ]


def incomplete_logs(evidence: Sequence[Evidence]) -> list[str]:
    """Logs that are missing, unreadable or not complete, with the reason."""
    sentences = []
    for experiment in evidence:
        if experiment.log_error:
            sentences.append(f"{experiment.label}: {experiment.log_error}.")
        elif experiment.log is not None and experiment.log.integrity != "complete":
            sentences.append(
                f"{experiment.label}: the log is {experiment.log.integrity}: {experiment.log.reasons[0]}"
            )
    return sentences


def listed(texts: Sequence[str], limit: int = 6) -> str:
    """`a, b and c`; of more than `limit` the first, and how many more there are."""
    hidden = len(texts) - limit
    shown = list(texts[:limit])
    if hidden <= 0 and len(shown) > 1:
        return f"{', '.join(shown[:-1])} and {shown[-1]}"
    return ", ".join(shown) + (f" and {hidden} more" if hidden > 0 else "")
