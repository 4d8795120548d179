"""Why a NaN or an infinity was born: one rule per cause, over what one instruction took in and gave back.

The log has masks, not values: a rule says what can only have happened (high), what fits best (medium), or
what may have (low). Arithmetic after IEEE 754: inf - inf and 0 x inf are NaN; finite numbers whose result is
too large give an infinity; 1/0 is infinite. An instruction whose text stands for several (see
`Instruction.merged`) loses a step of confidence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from lab.rooms.nan.nixnan.log import Instruction, Site
from lab.rooms.nan.nixnan.names import category, is_store

INFINITIES = ("infinity", "-infinity")
_SUMS = ("FADD", "DADD", "HADD2")
_PRODUCTS = ("FMUL", "DMUL", "HMUL2")
_FUSED = ("FFMA", "DFMA", "HFMA2")
_TENSOR = ("HMMA", "DMMA")
_LITERAL = re.compile(r"(?P<sign>[+-]?)\s*INF\b", re.IGNORECASE)
# Where softmax's code is found under cut names.
_MAY_BE_SOFTMAX = ("attention", "softmax", "unnamed", "reduce")
LEVELS = ("low", "medium", "high")
MOST_EVIDENCE = 6


class Found(NamedTuple):
    confidence: str
    benign: bool
    reason: str


def _sure(reason: str, *, benign: bool = False) -> Found:
    """What can only have happened."""
    return Found("high", benign, reason)


def _likely(reason: str, *, benign: bool = False) -> Found:
    """What fits best."""
    return Found("medium", benign, reason)


def _possible(reason: str) -> Found:
    """What may have happened."""
    return Found("low", False, reason)


class Rule(NamedTuple):
    name: str
    label: str
    test: Callable[[Instruction], Found | None]


def _base(instruction: Instruction) -> str:
    return instruction.opcode.partition(".")[0]


def _born(instruction: Instruction) -> bool:
    return instruction.class_of("NaN") == "birth"


def _kinds(instruction: Instruction) -> set[str]:
    return {kind for site in instruction.sites.values() for kind in site.kinds}


def _constant(instruction: Instruction) -> Found | None:
    was_seen = "NaN" in instruction.result or instruction.in_sources("NaN")
    if not was_seen or not re.search(r"[+-][QS]?NAN\b", instruction.sass):
        return None
    return _sure(
        "The NaN is a constant of the instruction, written by the compiler for inputs outside the domain.",
        benign=True,
    )


def _inf_minus_inf(instruction: Instruction) -> Found | None:
    """A sum of opposite infinities."""
    if not _born(instruction):
        return None
    if _base(instruction) in _FUSED and _factor_signs(instruction) and _signs(instruction, 3):
        return _likely("A factor and the addend were infinite: opposite ones met (or a zero met the factor).")
    if _base(instruction) not in _SUMS:
        return None
    mask = _masked_why(instruction)
    if _opposite(instruction):
        reason = "Both sources were infinite, with opposite signs after the instruction's own minus."
        return _sure(mask or reason, benign=bool(mask))
    if _factor_signs(instruction):
        reason = "A source was infinite; the other must have been the opposite infinity."
        return _likely(mask or reason, benign=bool(mask))
    return None


def _masked_why(instruction: Instruction) -> str:
    """Softmax subtracts each row's maximum: if all of a row is masked with -inf, that is (-inf) - (-inf)."""
    if category(instruction.function) not in _MAY_BE_SOFTMAX or not instruction.in_sources("-infinity"):
        return ""
    if "-" not in instruction.sass.partition(" ")[2]:
        return ""
    return "(-inf) - (-inf) in a softmax: a row whose scores are all masked, or past the sequence's end."


def _factor_signs(instruction: Instruction) -> set[int]:
    """Signs of the infinities in the two factors of a product, or the two terms of a sum."""
    return _signs(instruction, 1) | _signs(instruction, 2)


def _opposite(instruction: Instruction) -> bool:
    """Whether the two terms of a sum brought infinities of both signs, one each."""
    left, right = _signs(instruction, 1), _signs(instruction, 2)
    return any(-sign in right for sign in left)


def _signs(instruction: Instruction, operand: int) -> set[int]:
    """Signs of the infinities that this source brings into the operation; empty if there were none.

    nixnan's masks are of registers, before a minus or bars in the text apply; or the text itself is an
    infinity.
    """
    texts = operands(instruction.sass)
    text = texts[operand] if len(texts) > operand else ""
    if literal := _LITERAL.match(text):
        return {-1 if literal["sign"] == "-" else 1}
    kinds = instruction.kinds(operand)
    # A mask with both infinities prints `infinity` alone.
    signs = {sign for kind, sign in (("infinity", 1), ("-infinity", -1)) if kind in kinds}
    if "|" in text:
        signs = {1} if signs else signs
    return {-sign for sign in signs} if text.startswith("-") else signs


def operands(sass: str) -> list[str]:
    """The operands of an instruction, the result first: `FADD R2, -R7, R2` is [R2, -R7, R2]."""
    words = re.sub(r"^@\S+\s+", "", sass).partition(" ")[2]
    return [word.strip() for word in words.split(",")] if words else []


def _zero_times_inf(instruction: Instruction) -> Found | None:
    """A product with an infinite factor. With an infinite addend, too, the earlier rule inf - inf has it."""
    if not _born(instruction):
        return None
    if _base(instruction) in _PRODUCTS and _factor_signs(instruction):
        return _sure("A factor was infinite and none was NaN: the other was zero.")
    if _base(instruction) in _FUSED and _factor_signs(instruction):
        return _likely("A factor was infinite and the addend was not: the other factor was zero.")
    if _base(instruction) in _FUSED and _signs(instruction, 3):
        return _likely("The addend was infinite: the product overflowed to the opposite infinity.")
    return None


def _in_product_sum(instruction: Instruction) -> Found | None:
    if _base(instruction) not in _TENSOR or not _born(instruction):
        return None
    if instruction.in_sources(*INFINITIES):
        return _likely(
            "Infinite inputs of a tensor core product: a zero met one, or opposite ones were added."
        )
    return _possible("No infinite input was seen: a partial sum overflowed both ways.")


def _bad_domain(instruction: Instruction) -> Found | None:
    if _base(instruction) != "MUFU" or not _born(instruction):
        return None
    if re.search(r"\.(RSQ|SQRT|LG2)", instruction.opcode):
        return _likely("A root or logarithm of a negative number.")
    if re.search(r"\.(SIN|COS)", instruction.opcode) and instruction.in_sources(*INFINITIES):
        return _sure("A sine or cosine of an infinity.")
    return _possible("A special function gave NaN for an input that was not NaN.")


def _unseen_birth(instruction: Instruction) -> Found | None:
    if not _born(instruction):
        return None
    return _possible("The result was NaN and no source was seen to be NaN or infinite.")


def _division_by_zero(instruction: Instruction) -> Found | None:
    if "div0" not in _kinds(instruction):
        return None
    if ".RSQ" in instruction.opcode:
        return _sure("rsqrt(0): a square root written as x * rsqrt(x) passes here when x is 0.", benign=True)
    return _sure("The reciprocal of 0 was taken.")


def _made_infinity(instruction: Instruction) -> bool:
    """Whether the result was infinite and no source was seen to be infinite, NaN or a zero divisor."""
    is_infinite = any(kind in instruction.result for kind in INFINITIES)
    return is_infinite and not instruction.in_sources("NaN", "div0", *INFINITIES)


def _written_infinity(instruction: Instruction) -> Found | None:
    num_operands = max(4, len(operands(instruction.sass)))
    is_written = any(_signs(instruction, operand) for operand in range(1, num_operands))
    if not _made_infinity(instruction) or not is_written:
        return None
    return _sure("The infinity is an operand written in the instruction.", benign=True)


def _overflow(instruction: Instruction) -> Found | None:
    """Finite in, infinite out."""
    if not _made_infinity(instruction):
        return None
    if ".EX2" in instruction.opcode:
        return _sure("An exponential grew past the largest number.")
    if ".LG2" in instruction.opcode:
        return _sure("The logarithm of 0 is -inf.", benign=True)
    if ".RCP" in instruction.opcode or ".RSQ" in instruction.opcode:
        return _likely("The reciprocal of a number next to 0.")
    kind = instruction.type_of_result()
    limits = {"f16": "65,504", "bf16": "3.4e38", "f32": "3.4e38", "f64": "1.8e308"}
    reason = f"Finite sources, infinite result: past {limits.get(kind, 'the largest number')} of {kind}."
    return _likely(reason) if _base(instruction) in _TENSOR else _sure(reason)


def _masking(instruction: Instruction) -> Found | None:
    """-inf that only passes: how a mask says `not this one`."""
    kinds = _kinds(instruction)
    may_be_softmax = category(instruction.function) in _MAY_BE_SOFTMAX
    if "-infinity" not in kinds or kinds & {"NaN", "infinity"} or not may_be_softmax:
        return None
    return _likely(
        "-inf passes through a softmax and becomes exp(-inf) = 0: how attention masks work.", benign=True
    )


def _perhaps_inf_minus_inf(instruction: Instruction) -> Found | None:
    """NaN in and out, and infinities beside it: each line is of some warp, so they may not have met."""
    if _base(instruction) not in _SUMS or instruction.class_of("NaN") != "transit":
        return None
    if not _opposite(instruction):
        return None
    sources = [site for operand, site in instruction.sites.items() if operand]
    infinite = [line for site in sources for kind in INFINITIES if (line := site.first_of.get(kind))]
    if (
        min(infinite, default=0)  # 0: both are written in the instruction
        < instruction.sites[0].first_of["NaN"]
        < min(line for site in sources if (line := site.first_of.get("NaN")))
    ):
        return _likely("Opposite infinities reached this sum, then its result was NaN, only later a source.")
    return _possible(
        "Opposite infinities and NaN reached this sum: it may have made some NaN and passed on others."
    )


def _passing(instruction: Instruction) -> Found | None:
    if instruction.class_of("NaN") not in ("transit", "source_only"):
        return None
    return _possible(
        "NaN in a source: born by another instruction of the list, or by one that nixnan does not look at."
    )


def _stored(instruction: Instruction) -> Found | None:
    if not is_store(instruction.opcode):
        return None
    return _sure("A NaN was written to global memory: other kernels and the model can read it.")


def _infinite_passing(instruction: Instruction) -> Found | None:
    if not any(instruction.class_of(kind) in ("transit", "source_only", "birth") for kind in INFINITIES):
        return None
    return _possible(
        "Infinities pass through: none of them is born at these instructions by a rule of this list."
    )


def _subnormal(instruction: Instruction) -> Found | None:
    if instruction.class_of("subnormal") is None:
        return None
    return _sure("Numbers next to 0 lost digits; nothing is NaN or infinite here.", benign=True)


# First match counts.
RULES = (
    Rule("stored NaN", "NaN written to memory", _stored),
    Rule("constant NaN", "NaN in the code itself", _constant),
    Rule("inf - inf", "opposite infinities added", _inf_minus_inf),
    Rule("0 x inf", "an infinity times zero", _zero_times_inf),
    Rule("inf in a product sum", "infinities inside a tensor core product", _in_product_sum),
    Rule("outside the domain", "a special function outside its domain", _bad_domain),
    Rule("born unseen", "NaN without a visible reason", _unseen_birth),
    Rule("division by zero", "reciprocal of zero", _division_by_zero),
    Rule("constant infinity", "an infinity in the code itself", _written_infinity),
    Rule("overflow", "finite in, infinite out", _overflow),
    Rule("perhaps inf - inf", "a sum that took opposite infinities and NaN", _perhaps_inf_minus_inf),
    Rule("NaN passing", "NaN handed on", _passing),
    Rule("masking", "-inf of a mask", _masking),
    Rule("infinity passing", "infinity handed on", _infinite_passing),
    Rule("subnormal", "numbers next to zero", _subnormal),
)


def causes(instructions: Iterable[Instruction]) -> list[dict[str, Any]]:
    """One row per cause, confidence and benign; for each instruction the first rule that fits counts.

    Keys: cause, what, confidence, benign, why, sites, lines, functions, evidence. Most serious first.
    """
    rows: dict[tuple[str, str, bool, str], dict[str, Any]] = {}
    for instruction in instructions:
        for rule in RULES:
            if cause := rule.test(instruction):
                _add(rows, rule, _less_sure(cause, instruction), instruction)
                break
    order = {rule.name: index for index, rule in enumerate(RULES)}
    return sorted(
        rows.values(), key=lambda row: (row["benign"], order[row["cause"]], -LEVELS.index(row["confidence"]))
    )


def _add(
    rows: dict[tuple[str, str, bool, str], dict[str, Any]], rule: Rule, cause: Found, instruction: Instruction
) -> None:
    row = rows.setdefault(
        (rule.name, *cause),
        {
            "cause": rule.name,
            "what": rule.label,
            "confidence": cause.confidence,
            "benign": cause.benign,
            "why": cause.reason,
            "sites": 0,
            "lines": 0,
            "functions": {},
            "evidence": [],
        },
    )
    row["sites"] += 1
    row["lines"] += instruction.lines
    row["functions"][instruction.function] = row["functions"].get(instruction.function, 0) + 1
    if len(row["evidence"]) < MOST_EVIDENCE:
        nan_first = sorted(
            instruction.sites.values(), key=lambda site: ("NaN" not in site.kinds, site.operand or 0)
        )
        row["evidence"] += [evidence(site) for site in nan_first]
        del row["evidence"][MOST_EVIDENCE:]


def evidence(site: Site) -> dict[str, Any]:
    """The raw line behind a number."""
    return {"file": site.file, "line": site.line, "raw": site.raw}


def _less_sure(cause: Found, instruction: Instruction) -> Found:
    if not instruction.merged or cause.confidence == "low":
        return cause
    lower = LEVELS[LEVELS.index(cause.confidence) - 1]
    return cause._replace(confidence=lower, reason=f"{cause.reason} Several instructions share this text.")
