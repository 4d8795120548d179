"""How far bad numbers got in each experiment, and the ranks that follow.

A NaN in an instruction is not yet a NaN in the model: attention kernels mask with infinities and discard the
result. So each experiment gets a chain: seen in instructions, stored to memory, in a module's output, in the
logits, in the text. The verdict is the furthest link, and a rank is a rank of verdicts, never of counts. What
crashed has no rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.core.words import plural
from lab.rooms.nan.evidence import Evidence, bad_leaves, subnormals, text_of
from lab.rooms.nan.nixnan.log import memory_nan_lines, stored_nan, totals

# Verdict -> grade. What stayed inside kernels does no harm and shares the first grade: a level that was not
# watched cannot make one experiment better than another. What is not listed here is inconclusive and has no
# rank.
SEVERITY = {
    "clean": 0,
    "subnormal-only": 0,
    "masked-intermediate": 0,
    "stored": 1,
    "reached-module": 2,
    "reached-logits": 3,
}
Link = tuple[
    str, str
]  # "yes", "no" or "?" (not watched, or not visible at this level), and the number behind it


@dataclass(frozen=True)
class Chain:
    """One link per level, in the order of lab.rooms.nan.analyze.LINKS."""

    instruction: Link
    stored: Link
    module: Link
    logits: Link
    text: Link


def chain_of(experiment: Evidence, baseline: Evidence | None) -> Chain:
    """How far bad numbers got.

    Instructions: NaN or infinity in an operand; modules and logits: NaN or infinity.
    """
    return Chain(
        _instruction(experiment),
        _stored(experiment),
        _module(experiment),
        _logits(experiment),
        _text(experiment, baseline),
    )


def verdict_of(experiment: Evidence, chain: Chain) -> str:
    """Name the furthest link, or why a verdict is missing."""
    if experiment.status not in ("ok", "no-effect"):
        return f"inconclusive ({experiment.status})"
    if chain.logits[0] == "yes":
        return "reached-logits"
    if chain.module[0] == "yes":
        return "reached-module"
    if chain.stored[0] == "yes":
        return "stored"
    if chain.instruction[0] == "yes":
        return "masked-intermediate"
    if chain.module[0] == "?" and chain.logits[0] == "?":
        return "inconclusive (zero events do not prove health: see what nixnan cannot see)"
    return "subnormal-only" if subnormals(experiment) else "clean"


def ranks(evidence: Sequence[Evidence], verdicts: Mapping[str, str]) -> dict[str, int]:
    """Label -> rank by verdict, 1 is best; equals share a rank; what is not compared has none."""
    able = [
        experiment.label
        for experiment in evidence
        if experiment.compared and verdicts[experiment.label] in SEVERITY
    ]
    grade = {label: SEVERITY[verdicts[label]] for label in able}
    return {label: 1 + sum(better < grade[label] for better in grade.values()) for label in able}


def _instruction(experiment: Evidence) -> Link:
    if experiment.log is None or not _attached(experiment):
        return "?", experiment.log_error or "not run under nixnan"
    lines = totals(experiment.log)
    nans, infs = lines["NaN"], lines["infinity"] + lines["-infinity"]
    if nans or infs:
        return "yes", f"NaN in {plural(nans, 'line')}, infinity in {plural(infs, 'line')}"
    if reason := _nothing_instrumented(experiment):
        return "?", reason
    return "no", f"no line, in what nixnan can see{_of_chosen(experiment)}"


def _stored(experiment: Evidence) -> Link:
    if experiment.log is None or not _attached(experiment):
        return "?", experiment.log_error or "not run under nixnan"
    if stored_nan(experiment.log):
        return "yes", plural(memory_nan_lines(experiment.log), "line")
    if reason := _nothing_instrumented(experiment):
        return "?", reason
    return "no", f"0 stored by instrumented stores{_of_chosen(experiment)}"


def _nothing_instrumented(experiment: Evidence) -> str:
    """Why no line means nothing; empty if some kernel was looked at."""
    if experiment.inventory:
        return "no kernel was instrumented"
    if (
        experiment.only_kernels
        and experiment.log is not None
        and not experiment.log.kernels
        and not experiment.log.error_lines
    ):
        return "none of the kernels that --only-kernel names was looked at: are the names exact?"
    return ""


def _of_chosen(experiment: Evidence) -> str:
    """What the options left to look at, if they left something out."""
    if experiment.only_kernels:
        return f" of {plural(len(experiment.only_kernels), 'kernel')} that --only-kernel names"
    return f" but for {plural(len(experiment.not_kernels), 'kernel')}" if experiment.not_kernels else ""


def _attached(experiment: Evidence) -> bool:
    return experiment.log is not None and (experiment.log.context_seen or experiment.log.error_lines > 0)


def _module(experiment: Evidence) -> Link:
    if experiment.watch:
        bad = bad_leaves(experiment)
        return (
            ("yes", plural(bad, "bad leaf", "bad leaves"))
            if bad
            else _none_in(experiment.watch["modules"], "module")
        )
    if published := experiment.counts:
        bad = len(published["bad_modules"])
        return ("yes", plural(bad, "module")) if bad else _none_in(published["modules"], "module")
    return "?", "not watched" if experiment.result else "no result"


def _logits(experiment: Evidence) -> Link:
    if logits := experiment.logits:
        bad = len(logits["bad_steps"])
        return (
            ("yes", f"{bad} of {plural(logits['steps'], 'step')}")
            if bad
            else _none_in(logits["steps"], "step")
        )
    if head := experiment.counts.get("rows", {}).get("lm_head"):
        bad = sum(head)
        return ("yes", f"{bad} in lm_head") if bad else ("no", "0 in lm_head, last call")
    return "?", "no result"


def _none_in(count: int, noun: str) -> Link:
    return "no", f"0 in {plural(count, noun)}"


def _text(experiment: Evidence, baseline: Evidence | None) -> Link:
    """Whether the text differs from the baseline's: the only link that a user of the model would see."""
    text, of_baseline = text_of(experiment), text_of(baseline)
    if experiment is baseline:
        return "?", "this is the baseline"
    if text is None or of_baseline is None:
        return "?", "no text to compare"
    return (
        ("no", "same text as the baseline")
        if text == of_baseline
        else ("yes", "differs from the baseline's text")
    )
