"""From evidence to words: how far bad numbers got, who wins (nobody that crashed), why they were made.

A NaN in an instruction is no NaN in a model: attention kernels mask with infinities and throw the result away. So each
experiment gets a chain: seen in instructions, stored to memory, in a module's output, in the logits, in the text. The
verdict is the furthest link, and a rank is a rank of verdicts, never of counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lab.rooms.nan.evidence import Evidence
from lab.rooms.nan.nixnan.sass import memory_nan_lines, stored_nan

# Verdict -> grade. What stayed inside kernels harms nobody and shares the first grade: a level that was not watched
# cannot make one experiment better than another. What is not here is inconclusive and has no rank.
SEVERITY = {
    "clean": 0,
    "subnormal-only": 0,
    "masked-intermediate": 0,
    "stored": 1,
    "reached-module": 2,
    "reached-logits": 3,
}
LINKS = ("instruction", "stored", "module", "logits", "text")
HALF_MAX = 65504.0
LARGEST = {"float16": HALF_MAX, "bfloat16": 3.3895e38, "float32": 3.4028e38}


@dataclass(frozen=True)
class Chain:
    """For each link: "yes", "no" or "?" (this level was not watched, or cannot see it), with the number behind it."""

    instruction: tuple[str, str]
    stored: tuple[str, str]
    module: tuple[str, str]
    logits: tuple[str, str]
    text: tuple[str, str]

    def states(self) -> list[str]:
        return [getattr(self, link)[0] for link in LINKS]


def chain(one: Evidence, baseline: Evidence | None) -> Chain:
    """How far bad numbers got. Instructions: NaN or infinity in an operand; modules and logits: NaN or infinity."""
    return Chain(_instruction(one), _stored(one), _module(one), _logits(one), _text(one, baseline))


def _instruction(one: Evidence) -> tuple[str, str]:
    if one.log is None or (not one.log.context_seen and not one.log.error_lines):
        return "?", one.log_error or "not run under nixnan"
    nans, infs = kind_lines(one, "NaN"), kind_lines(one, "infinity") + kind_lines(one, "-infinity")
    if nans or infs:
        return "yes", f"{nans} lines NaN, {infs} lines infinity"
    return "no", "no line, in what nixnan can see"


def _stored(one: Evidence) -> tuple[str, str]:
    if one.log is None or (not one.log.context_seen and not one.log.error_lines):
        return "?", one.log_error or "not run under nixnan"
    lines = memory_nan_lines(one.log)
    return ("yes", f"{lines} lines") if stored_nan(one.log) else ("no", "0 stored by instrumented stores")


def _module(one: Evidence) -> tuple[str, str]:
    if one.watch:
        bad = bad_leaves(one)
        return ("yes", f"{bad} leaves") if bad else ("no", f"0 in {one.watch['modules']} modules")
    if published := (one.result or {}).get("published"):
        bad = len(published["bad_modules"])
        return ("yes", f"{bad} modules") if bad else ("no", f"0 in {published['modules']} modules")
    return "?", "not watched" if one.result else "no result"


def _logits(one: Evidence) -> tuple[str, str]:
    told = (one.result or {}).get("logits")
    if told:
        bad = len(told["bad_steps"])
        return ("yes", f"{bad} of {told['steps']} steps") if bad else ("no", f"0 of {told['steps']} steps")
    published = (one.result or {}).get("published")
    if published and "lm_head" in published["rows"]:
        bad = sum(published["rows"]["lm_head"])
        return ("yes", f"{bad} in lm_head") if bad else ("no", "0 in lm_head, last call")
    return "?", "no result"


def _text(one: Evidence, baseline: Evidence | None) -> tuple[str, str]:
    """Whether the text differs from the baseline's: the only link that a reader of the model's answers would see."""
    mine, theirs = text_of(one), text_of(baseline) if baseline else None
    if mine is None or theirs is None or baseline is one:
        return "?", "the baseline itself" if baseline is one else "no text to compare"
    return (
        ("no", "same text as the baseline") if mine == theirs else ("yes", "another text than the baseline")
    )


def verdict(one: Evidence, links: Chain) -> str:
    """The furthest link, or why nothing can be said."""
    if one.status not in ("ok", "no-effect"):
        return f"inconclusive ({one.status})"
    if links.logits[0] == "yes":
        return "reached-logits"
    if links.module[0] == "yes":
        return "reached-module"
    if links.stored[0] == "yes":
        return "stored"
    if links.instruction[0] == "yes":
        return "masked-intermediate"
    if links.module[0] == "?" and links.logits[0] == "?":
        return "inconclusive (zero events are no health: see what nixnan cannot see)"
    return "subnormal-only" if subnormals(one) else "clean"


def ranks(evidence: Sequence[Evidence], verdicts: Mapping[str, str]) -> dict[str, int]:
    """Label -> rank by verdict, 1 is best; equals share a rank; what is not compared has none."""
    able = [one.label for one in evidence if one.compared and verdicts[one.label] in SEVERITY]
    grade = {label: SEVERITY[verdicts[label]] for label in able}
    return {label: 1 + sum(other < grade[label] for other in grade.values()) for label in able}


# Numbers of one experiment.


def kind_lines(one: Evidence, kind: str) -> int:
    """Lines of operations with this kind, all types."""
    if one.log is None:
        return 0
    return sum(kinds.get(kind, 0) for name, kinds in one.log.counts.items() if name != "memory")


def reported(one: Evidence, types: Sequence[str], kind: str) -> tuple[int, int] | None:
    """(unique, repeats) of nixnan's own report; None without a report."""
    if one.log is None or one.log.report is None:
        return None
    cells = [one.log.report.get(name, {}).get(kind) for name in types]
    known = [cell for cell in cells if cell]
    return sum(cell["unique"] for cell in known), sum(cell["repeats"] or 0 for cell in known)


def bad_leaves(one: Evidence) -> int:
    return sum(step["bad_leaves"] for step in (one.watch or {}).get("steps", ()))


def python_totals(one: Evidence) -> dict[str, float]:
    """NaN and infinities over distinct output tensors of all forwards."""
    if one.watch:
        steps = one.watch["steps"]
        return {kind: sum(step[kind] for step in steps) for kind in ("nan", "posinf", "neginf")}
    published = (one.result or {}).get("published")
    return {"nan": published["nan"], "posinf": published["inf"], "neginf": 0} if published else {}


def subnormals(one: Evidence) -> bool:
    seen = any(step["subnormal"] > 0 for step in (one.watch or {}).get("steps", ()))
    return seen or kind_lines(one, "subnormal") > 0


def text_of(one: Evidence | None) -> str | None:
    texts = (one.result or {}).get("text") if one else None
    return "\n".join(texts) if texts else None


# Why.


def cause(one: Evidence, calls: pd.DataFrame | None) -> tuple[str, str, str] | None:
    """(cause, confidence, evidence) of the first birth, from the magnitudes around it; None where nothing was born.

    Confidence: certain where the numbers leave no other way, likely where they allow it, possible where they do not rule it out.
    """
    first = (one.watch or {}).get("first")
    if not first:
        return None
    if first["how"] == "weights":
        named = (
            [w for w in one.watch["weights"] if w["name"].startswith(first["module"])] if one.watch else []
        )
        what = ", ".join(
            f"{w['name']}: {int(w['nan'])} NaN, {int(w['posinf'] + w['neginf'])} infinite" for w in named
        )
        return "a weight is not finite", "certain", what
    if first["how"] == "cache":
        return "the key/value cache held it", "certain", first["place"]
    if first["how"] == "given":
        return "it came with the inputs", "certain", first["place"]
    if calls is None or calls.empty:
        return "unknown", "possible", "the forward was not kept call by call"
    return _from_magnitudes(first, calls[calls["step"] == first["step"]])


def _from_magnitudes(first: Mapping[str, Any], calls: pd.DataFrame) -> tuple[str, str, str]:
    """Overflow shows as a product of finite factors that the type cannot hold; a masked row as NaN without one."""
    bad = calls[calls[["nan", "posinf", "neginf"]].clip(lower=0).sum(axis=1) > 0]
    if bad.empty:
        return "unknown", "possible", "the forward was not kept call by call"
    leaf = bad.iloc[0]
    limit = LARGEST.get(str(leaf["dtype"]), HALF_MAX)
    before = calls[(calls["seq"] < leaf["seq"]) & (calls["side"] == "out")]
    own = before[before["module"].str.startswith(f"{first['module']}.")]
    peaks = {
        str(name).rsplit(".", 1)[-1]: float(peak)
        for name, peak in own.groupby("module")["absmax"].last().items()
    }
    kind = "NaN" if leaf["nan"] > 0 else "infinity"
    attention = peaks.get("q_proj") and peaks.get("k_proj")
    if attention:
        product, words = (
            peaks["q_proj"] * peaks["k_proj"],
            f"|q| reaches {peaks['q_proj']:.4g} and |k| {peaks['k_proj']:.4g}",
        )
        if product > limit:
            return (
                f"overflow of {_type(leaf['dtype'])} in the attention scores",
                "likely",
                f"{words}: one product of elements alone may reach {product:.3g}, {leaf['dtype']} ends at {limit:.5g}; "
                f"the softmax makes NaN of inf - inf",
            )
        return (
            "a fully masked row in the softmax: (-inf) - (-inf)",
            "possible",
            f"{words}: their products stay inside {leaf['dtype']}, so the scores themselves are finite; {kind} first in "
            f"{leaf['module']} {leaf['leaf']}",
        )
    # A product between modules takes what the last two put out, as a gated MLP does.
    names = [str(name).rsplit(".", 1)[-1] for name in own.drop_duplicates("module", keep="last")["module"]][
        -2:
    ]
    factors = [peaks[name] for name in names]
    if len(factors) == 2 and factors[0] * factors[1] > limit and first["how"] == "between":
        return (
            f"overflow of {_type(leaf['dtype'])} in the product of {' and '.join(names)}",
            "likely",
            f"they reach {factors[0]:.4g} and {factors[1]:.4g}, {leaf['dtype']} ends at {limit:.5g}",
        )
    if kind == "infinity":
        return (
            f"overflow of {_type(leaf['dtype'])}",
            "likely",
            f"finite numbers went into {first['module'] or 'the model'}, infinity came out",
        )
    return "unknown", "possible", f"{kind} first in {leaf['module']} {leaf['side']} {leaf['leaf']}"


def _type(dtype: object) -> str:
    return {"float16": "half", "bfloat16": "bfloat16", "float32": "float"}.get(str(dtype), str(dtype))
