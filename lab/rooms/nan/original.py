"""What the published files' own analysis concluded from them, and why it does not follow."""

from __future__ import annotations

from collections.abc import Sequence

from lab.core.words import plural
from lab.rooms.nan.counts import kind_lines, python_totals, text_of
from lab.rooms.nan.evidence import Evidence, baseline_of
from lab.rooms.nan.lists import listed
from lab.rooms.nan.nixnan.judging.verdict import memory_nan_lines


def faults_of_the_original(evidence: Sequence[Evidence]) -> list[str]:
    """One sentence per conclusion; none where the experiments are not the published ones."""
    published = [evidence_row for evidence_row in evidence if evidence_row.published]
    if not published:
        return []
    faults = [
        _crash_ranked_best(published),
        _tie_ranked_best(published),
        _change_without_effect(published),
        _different_lengths(published),
        _levels_not_joined(published),
    ]
    return [f"The original analysis: {sentence}" for sentence in faults if sentence]


def _crash_ranked_best(published: Sequence[Evidence]) -> str:
    logs = {experiment.label: experiment.log for experiment in published if experiment.log is not None}
    logged = [experiment for experiment in published if experiment.log is not None]
    fewest = min(logged, key=lambda experiment: kind_lines(experiment, "NaN"), default=None)
    if fewest is None or fewest.compared or not any(experiment.compared for experiment in logged):
        return ""
    kernels = plural(len(logs[fewest.label].kernels), "kernel")
    most_kernels = max(len(log.kernels) for log in logs.values())
    return (
        f"fewest NaN lines would make {fewest.label} ({kind_lines(fewest, 'NaN')}) the best at the "
        "instruction "
        f"level; it {fewest.reason}, and its log names {kernels} where others name up to {most_kernels}."
    )


def _tie_ranked_best(published: Sequence[Evidence]) -> str:
    totals = {
        experiment.label: sum(python_totals(experiment).values())
        for experiment in published
        if (experiment.result or {}).get("published")
    }
    tied = [label for label, total in totals.items() if total == min(totals.values())]
    if len(tied) < 2:
        return ""
    starred = next((label for label in tied if label != "baseline"), tied[0])
    tie = f"one of {len(tied)} that tie at {min(totals.values()):g} ({listed(tied)})"
    return f"stars {starred} at the Python level, {tie}."


def _change_without_effect(published: Sequence[Evidence]) -> str:
    """layernorm_eps looked for nn.LayerNorm, which a Mistral does not have."""
    base = baseline_of(published)
    eps = next(
        (published_row for published_row in published if published_row.experiment == "layernorm_eps"), None
    )
    if eps is None or base is None or text_of(eps) != text_of(base):
        return ""
    return (
        "counts layernorm_eps as an experiment: its text equals the baseline's to the letter, because its "
        "patch looks for nn.LayerNorm and this model has only RMSNorm."
    )


def _different_lengths(published: Sequence[Evidence]) -> str:
    base = baseline_of(published)
    bfloat16 = next(
        (published_row for published_row in published if published_row.experiment == "bfloat16"), None
    )
    text, of_base = text_of(bfloat16), text_of(base)
    if not text or not of_base or len(text) >= len(of_base):
        return ""
    return (
        "compares counts of runs of different length: bfloat16 stopped after "
        f"{plural(len(text), 'character')}, the baseline after {len(of_base)}, and it changed the "
        "quantization (nf4, double) along with the type."
    )


def _levels_not_joined(published: Sequence[Evidence]) -> str:
    joined = [
        (published_row, published_row.log, published_row.result)
        for published_row in published
        if published_row.log is not None and published_row.result
    ]
    if not joined:
        return ""
    nans = plural(sum(kind_lines(one, "NaN") for one, _, _ in joined), "NaN line")
    stored = sum(memory_nan_lines(log) for _, log, _ in joined)
    modules = sum(len(result.get("published", {}).get("bad_modules", ())) for _, _, result in joined)
    experiment_count = plural(len(joined), "experiment")
    beside = f"{stored} stored and {modules} bad modules"
    return f"never joins its levels: {nans} in {experiment_count} stand beside {beside}."
