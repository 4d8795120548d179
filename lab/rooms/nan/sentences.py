"""What the page says first: sentences from tables, each true of this folder and followable to its row."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lab.rooms.nan import verdict as words
from lab.rooms.nan.analyze import NanTables, baseline_of, nan_sites
from lab.rooms.nan.evidence import Evidence
from lab.rooms.nan.nixnan.categories import shown
from lab.rooms.nan.verdict import SEVERITY, kind_lines, text_of

MOST = 6


def sentences(tables: NanTables) -> list[str]:
    """The verdict, its reasons, what cannot be compared, and what costs were paid."""
    found = [
        headline(tables),
        *births(tables),
        *cures(tables),
        *instructions(tables),
        *ties(tables),
        *left_out(tables.evidence),
        *originals_faults(tables),
        *unattached(tables.evidence),
        *watch_cost(tables.evidence),
        *quality(tables.evidence),
    ]
    return [sentence for sentence in found if sentence]


def headline(tables: NanTables) -> str:
    """The furthest that bad numbers got in a comparable experiment."""
    frame = tables.experiments
    able = frame[frame["rank"].notna()]
    if able.empty:
        return f"No experiment can be judged: {_some([f'{row.experiment} {row.status}' for row in frame.itertuples()])}."
    worst = max(able["verdict"], key=SEVERITY.__getitem__)
    of_worst = able[able["verdict"].map(SEVERITY) == SEVERITY[worst]]
    names = _some(list(of_worst["experiment"]))
    if SEVERITY[worst] == 3:
        return (
            f"NaN or infinity reaches the logits in {names} ({len(of_worst)} of {_experiments(len(able))})."
        )
    if SEVERITY[worst] == 2:
        return f"NaN or infinity is in module outputs of {names}, but not in the logits."
    if SEVERITY[worst] == 1:
        return f"NaN is stored to memory in {names}, but no watched module and no logit holds one."
    if (able["verdict"] == "masked-intermediate").any():
        return (
            "NaN and infinity are made inside kernels and never leave them: none stored by an instrumented store, none in a "
            "watched module, none in the logits. They are masked intermediates, and no experiment is better or worse by them."
        )
    return f"No NaN and no infinity in any output of {_experiments(len(able))}."


def _experiments(count: int) -> str:
    return f"{count} comparable experiment{'' if count == 1 else 's'}"


def births(tables: NanTables) -> list[str]:
    """The first producer of each experiment that has one; experiments that agree share a sentence."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for one in tables.evidence:
        first = (one.watch or {}).get("first")
        if first:
            why = tables.causes.get(one.label, ("", "", ""))
            planted = ((one.result or {}).get("planted") or {}).get("expected", "")
            right = planted and (first["module"] == planted)
            shared.setdefault(
                (first["place"], first["phase"], str(first["step"]), *why, planted if right else ""), []
            ).append(one.label)
    found = []
    for (place, phase, step, cause, sure, evidence, planted), labels in shared.items():
        said = f"{_some(labels)}: born {place} ({phase}, step {step})"
        because = f": {cause} ({sure}; {evidence})" if cause else ""
        found.append(said + because + (f". This is what was planted: {planted}" if planted else "") + ".")
    return found


def cures(tables: NanTables) -> list[str]:
    """Which change kept the logits finite where another did not: the same weights, one thing different."""
    base = tables.baseline
    able = [one for one in tables.evidence if one.compared]
    bad = [one for one in able if tables.chains[one.label].logits[0] == "yes"]
    good = [one for one in able if tables.chains[one.label].logits[0] == "no"]
    if not bad or not good or base is None:
        return []
    if base in bad:
        return [f"{_some([_said(one) for one in good])} kept the logits finite where {_said(base)} did not."]
    attention = ((base.result or {}).get("effective") or {}).get("attention", "")
    names = _some([one.label for one in bad])
    kept = _some([one.label for one in good])
    fused = (
        f" Fused attention ({attention}) never writes the scores in half"
        if attention == "sdpa" and any(one.experiment == "eager" for one in bad)
        else ""
    )
    cure = f"{fused}: {attention} cures it." if fused else ""
    return [f"The same weights stay finite in {kept}; what breaks them is {names}.{cure}"]


def _said(one: Evidence) -> str:
    effective = ((one.result or {}).get("effective")) or {}
    return (
        f"{one.label} ({', '.join(effective.get('dtypes', []))}, {effective.get('attention', '')})"
        if effective
        else one.label
    )


def instructions(tables: NanTables) -> list[str]:
    """Where the instructions' NaN are, by function, for the baseline or the first log."""
    logs = [one for one in tables.evidence if one.log is not None and one.log.functions]
    if not logs:
        return []
    one = tables.baseline if tables.baseline in logs else logs[0]
    assert one is not None and one.log is not None
    nans = {name: kinds.get("NaN", 0) for name, kinds in one.log.function_kinds.items() if kinds.get("NaN")}
    total = kind_lines(one, "NaN")
    if not nans:
        return [f"{one.label}: {one.log.error_lines} lines of nixnan, none of them NaN."]
    sites = nan_sites(one.log)
    top = sorted(nans.items(), key=lambda item: -item[1])[:3]
    told = _some([f"{shown(name)} {lines} ({sites.get(name, 0)} sites)" for name, lines in top])
    return [
        f"{one.label}: {one.log.error_lines} lines, {one.log.site_count} sites, {total} lines with NaN: {told}."
    ]


def ties(tables: NanTables) -> list[str]:
    frame = tables.experiments
    best = frame[frame["rank"] == 1]
    if len(best) < 2:
        return []
    names = f"{len(best)} experiments share the first rank ({_some(list(best['experiment']))})"
    if SEVERITY[best["verdict"].iloc[0]] == 0:
        return [f"{names}: there is no improvement over zero."]
    return [f"{names}: bad numbers get as far in each of them."]


def left_out(evidence: Sequence[Evidence]) -> list[str]:
    return [
        f"Not compared: {one.label}, {one.status}{f' ({one.reason})' if one.reason else ''}."
        for one in evidence
        if not one.compared
    ]


def originals_faults(tables: NanTables) -> list[str]:
    """For the published files: what their own analysis concluded from them, and why it does not follow."""
    published = [one for one in tables.evidence if one.published]
    if not published:
        return []
    found = [
        _crowned_crash(published),
        _crowned_tie(published),
        *_no_op(published),
        _shorter_text(published),
        _never_joined(published),
    ]
    return [f"The original analysis: {sentence}" for sentence in found if sentence]


def _crowned_crash(published: Sequence[Evidence]) -> str:
    logs = [one for one in published if one.log is not None]
    least = min(logs, key=lambda one: kind_lines(one, "NaN"), default=None)
    if least is None or least.compared or not any(one.compared for one in logs):
        return ""
    return (
        f"fewest NaN lines would make {least.label} ({kind_lines(least, 'NaN')}) the best at the instruction level; it {least.reason}, "
        f"and its log names {len(_kernels_of(least))} kernels where others name up to {max(len(_kernels_of(one)) for one in logs)}."
    )


def _crowned_tie(published: Sequence[Evidence]) -> str:
    able = [one for one in published if (one.result or {}).get("published")]
    totals = {one.label: sum(words.python_totals(one).values()) for one in able}
    least = [label for label, total in totals.items() if total == min(totals.values())]
    if len(least) < 2:
        return ""
    starred = next((label for label in least if label != "baseline"), least[0])
    return f"stars {starred} at the Python level, one of {len(least)} that tie at {min(totals.values()):g} ({_some(least)})."


def _no_op(published: Sequence[Evidence]) -> list[str]:
    """layernorm_eps looked for nn.LayerNorm, which a Mistral has none of."""
    base = baseline_of(published)
    eps = next((one for one in published if one.experiment == "layernorm_eps"), None)
    if eps is None or base is None or text_of(eps) != text_of(base):
        return []
    return [
        "counts layernorm_eps as an experiment: its text is the baseline's to the letter, as its patch looks for nn.LayerNorm and "
        "this model has RMSNorm only."
    ]


def _shorter_text(published: Sequence[Evidence]) -> str:
    base = baseline_of(published)
    other = next((one for one in published if one.experiment == "bfloat16"), None)
    mine, theirs = text_of(other), text_of(base)
    if not mine or not theirs or len(mine) >= len(theirs):
        return ""
    return (
        f"compares counts of runs of different length: bfloat16 stopped after {len(mine)} characters, the baseline after "
        f"{len(theirs)}, and it changed the quantization (nf4, double) along with the type."
    )


def _never_joined(published: Sequence[Evidence]) -> str:
    both = [one for one in published if one.log is not None and one.result]
    if not both:
        return ""
    nans = sum(kind_lines(one, "NaN") for one in both)
    return f"never joins its levels: {nans} NaN lines in {len(both)} experiments stand beside 0 stored and 0 in every watched module."


def _kernels_of(one: Evidence) -> list[str]:
    return one.log.kernels if one.log else []


def unattached(evidence: Sequence[Evidence]) -> list[str]:
    """Logs that say less than they seem to."""
    found = []
    for one in evidence:
        if one.log_error:
            found.append(f"{one.label}: {one.log_error}.")
        elif one.log is not None and one.log.integrity != "complete":
            found.append(f"{one.label}: the log is {one.log.integrity}: {one.log.reasons[0]}")
    return found


def watch_cost(evidence: Sequence[Evidence]) -> list[str]:
    """What watching added to a clean forward, over the experiments that timed it."""
    clean = [one for one in evidence if not words.bad_leaves(one)]  # explaining a bad forward costs more
    told = [row for one in clean if (row := (one.result or {}).get("timing"))]
    if not told:
        return []
    parts = []
    for phase in ("prefill", "decode"):
        percent = pd.Series([row[phase]["overhead_percent"] for row in told])
        plain = pd.Series([row[phase]["plain_ms"] for row in told])
        parts.append(f"{percent.median():+.1f} % of a {phase} of {plain.median():.1f} ms")
    return [
        f"Watching cost {' and '.join(parts)} (medians of clean forwards of {told[0]['prompt_tokens']} and 1 tokens; counter: {told[0]['counter']})."
    ]


def quality(evidence: Sequence[Evidence]) -> list[str]:
    """The text beside the numbers: how far each distribution is from the baseline's on the baseline's own tokens."""
    rows = [(one.label, (one.result or {}).get("quality") or {}) for one in evidence]
    told = [
        f"{label} KL {row['kl_mean']:.2g}, same first choice in {100 * row['top1_agreement']:.0f} %"
        for label, row in rows
        if row.get("kl_mean") is not None
    ]
    return [f"Against the baseline's distribution on its own tokens: {'; '.join(told)}."] if told else []


def _some(texts: Sequence[str], most: int = MOST) -> str:
    more = len(texts) - most
    shown = list(texts[:most])
    if more <= 0 and len(shown) > 1:
        return f"{', '.join(shown[:-1])} and {shown[-1]}"
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
