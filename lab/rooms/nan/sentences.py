"""What the page says first: sentences from tables, each true of this folder and traceable to its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from lab.core.words import plural
from lab.rooms.nan.analyze import NanTables
from lab.rooms.nan.counts import bad_leaves, kind_lines
from lab.rooms.nan.evidence import Evidence
from lab.rooms.nan.lists import listed
from lab.rooms.nan.nixnan.categories import shown
from lab.rooms.nan.nixnan.sites import nan_sites
from lab.rooms.nan.original import faults_of_the_original
from lab.rooms.nan.verdict import SEVERITY


def sentences(tables: NanTables) -> list[str]:
    """The verdict, its reasons, what cannot be compared, and what watching cost."""
    return [
        headline(tables),
        *births(tables),
        *cures(tables),
        *instructions(tables),
        *ties(tables),
        *left_out(tables.evidence),
        *faults_of_the_original(tables.evidence),
        *incomplete_logs(tables.evidence),
        *watch_cost(tables.evidence),
        *quality(tables.evidence),
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
    for one in tables.evidence:
        first = (one.watch or {}).get("first")
        if not first:
            continue
        sentence = f"first born {first['place']} ({first['phase']}, step {first['step']})"
        if cause := tables.causes.get(one.label):
            sentence += f": {cause.what} ({cause.confidence}; {cause.evidence})"
        planted = ((one.result or {}).get("planted") or {}).get("expected", "")
        if planted and first["module"] == planted:
            sentence += f". This is what was planted: {planted}"
        shared.setdefault(sentence, []).append(one.label)
    return [f"{listed(labels)}: {sentence}." for sentence, labels in shared.items()]


def cures(tables: NanTables) -> list[str]:
    """Which change kept the logits finite where another did not: the same weights, one thing different."""
    base = tables.baseline
    able = [one for one in tables.evidence if one.compared]
    bad = [one for one in able if tables.chains[one.label].logits[0] == "yes"]
    good = [one for one in able if tables.chains[one.label].logits[0] == "no"]
    if not bad or not good or base is None:
        return []
    if base in bad:
        kept = listed([_with_types(one) for one in good])
        return [f"{kept} kept the logits finite where {_with_types(base)} did not."]
    names, kept = listed([one.label for one in bad]), listed([one.label for one in good])
    sentence = f"The same weights stay finite in {kept}; what breaks them is {names}."
    attention = ((base.result or {}).get("effective") or {}).get("attention", "")
    if attention == "sdpa" and any(one.experiment == "eager" for one in bad):
        sentence += " Fused attention (sdpa) never writes the scores in half: sdpa cures it."
    return [sentence]


def _with_types(one: Evidence) -> str:
    effective = (one.result or {}).get("effective")
    if not effective:
        return one.label
    return f"{one.label} ({', '.join(effective.get('dtypes', []))}, {effective.get('attention', '')})"


def instructions(tables: NanTables) -> list[str]:
    """Where the instructions' NaN are, by function, for the baseline or the first log."""
    logs = [one for one in tables.evidence if one.log is not None and one.log.functions]
    if not logs:
        return []
    one = tables.baseline if tables.baseline in logs else logs[0]
    assert one is not None and one.log is not None
    lines = plural(one.log.error_lines, "line")
    nans = {name: kinds["NaN"] for name, kinds in one.log.function_kinds.items() if kinds.get("NaN")}
    if not nans:
        return [f"{one.label}: {lines} of nixnan, none of them NaN."]
    sites = nan_sites(one.log)
    top = sorted(nans.items(), key=lambda item: -item[1])[:3]
    parts = listed([f"{shown(name)} {count:,} ({plural(sites.get(name, 0), 'site')})" for name, count in top])
    with_nan = plural(kind_lines(one, "NaN"), "line")
    return [f"{one.label}: {lines} at {plural(one.log.site_count, 'site')}, {with_nan} with NaN: {parts}."]


def ties(tables: NanTables) -> list[str]:
    frame = tables.experiments
    best = frame[frame["rank"] == 1]
    if len(best) < 2:
        return []
    names = f"{len(best)} experiments share the first rank ({listed(list(best['experiment']))})"
    if SEVERITY[best["verdict"].iloc[0]] == 0:
        return [f"{names}: there is no improvement over zero."]
    return [f"{names}: bad numbers get as far in each of them."]


def left_out(evidence: Sequence[Evidence]) -> list[str]:
    return [
        f"Not compared: {one.label}, {one.status}{f' ({one.reason})' if one.reason else ''}."
        for one in evidence
        if not one.compared
    ]


def incomplete_logs(evidence: Sequence[Evidence]) -> list[str]:
    """Logs that are missing, unreadable or not complete, with the reason."""
    found = []
    for one in evidence:
        if one.log_error:
            found.append(f"{one.label}: {one.log_error}.")
        elif one.log is not None and one.log.integrity != "complete":
            found.append(f"{one.label}: the log is {one.log.integrity}: {one.log.reasons[0]}")
    return found


def watch_cost(evidence: Sequence[Evidence]) -> list[str]:
    """What watching added to a clean forward, over the experiments that timed it."""
    clean = [one for one in evidence if not bad_leaves(one)]  # explaining a bad forward costs more
    timings = [timing for one in clean if (timing := (one.result or {}).get("timing"))]
    if not timings:
        return []
    tokens, counter = timings[0]["prompt_tokens"], timings[0]["counter"]
    how = f"medians of clean forwards of {tokens} and 1 tokens; counter: {counter}"
    costs = [_cost_of([timing[phase] for timing in timings], phase) for phase in ("prefill", "decode")]
    shown = [f"{percent:+.1f} % of a {what}" for percent, clear, what in costs if clear]
    unclear = [f"{what} ({percent:+.1f} %)" for percent, clear, what in costs if not clear]
    found = [f"Watching cost {' and '.join(shown)} ({how})."] if shown else []
    if unclear:
        found.append(f"What watching cost is within this machine's own variation: {' and '.join(unclear)}.")
    return found


def _cost_of(timings: Sequence[Mapping[str, float]], phase: str) -> tuple[float, bool, str]:
    """Median percent, whether the repeats agree that there is a cost at all, and the phase with its time."""
    percent = pd.Series([timing["overhead_percent"] for timing in timings]).median()
    lowest = pd.Series([timing.get("low_percent", timing["overhead_percent"]) for timing in timings]).median()
    plain_ms = pd.Series([timing["plain_ms"] for timing in timings]).median()
    return percent, percent > 0 and lowest > 0, f"{phase} of {plain_ms:.1f} ms"


def quality(evidence: Sequence[Evidence]) -> list[str]:
    """How far each distribution is from the baseline's, on the baseline's own tokens."""
    rows = [(one.label, (one.result or {}).get("quality") or {}) for one in evidence]
    parts = [
        f"{label} KL {row['kl_mean']:.2g}, same first choice in {100 * row['top1_agreement']:.0f} %"
        for label, row in rows
        if row.get("kl_mean") is not None
    ]
    return [f"Against the baseline's distribution on its own tokens: {'; '.join(parts)}."] if parts else []
