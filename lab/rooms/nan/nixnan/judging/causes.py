"""Why a NaN or an infinity was born: one rule per cause, over what one instruction took in and gave back.

The log has masks, not values: a rule says what can only have happened (high), what fits best (medium), or
what may have (low). Arithmetic after IEEE 754: inf - inf and 0 x inf are NaN; finite numbers whose result is
too large give an infinity; 1/0 is infinite. An instruction whose text stands for several (see
`Instruction.merged`) loses a step of confidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from lab.rooms.nan.nixnan.grammar import category, is_store
from lab.rooms.nan.nixnan.log import Instruction

INFINITIES = ("infinity", "-infinity")
_SUMS = ("FADD", "DADD", "HADD2")
_PRODUCTS = ("FMUL", "DMUL", "HMUL2")
_FUSED = ("FFMA", "DFMA", "HFMA2")
_TENSOR = ("HMMA", "DMMA")
_LITERAL = re.compile(r"(?P<sign>[+-]?)\s*INF\b", re.IGNORECASE)
# Where softmax's code is found under cut names.
_MAY_BE_SOFTMAX = ("attention", "softmax", "unnamed", "reduce")
LEVELS = ("low", "medium", "high")
# Name -> what a page calls it; most serious first.
CAUSES = {
    "stored NaN": "NaN written to memory",
    "constant NaN": "NaN in the code itself",
    "inf - inf": "opposite infinities added",
    "0 x inf": "an infinity times zero",
    "inf in a product sum": "infinities inside a tensor core product",
    "outside the domain": "a special function outside its domain",
    "born unseen": "NaN without a visible reason",
    "division by zero": "reciprocal of zero",
    "constant infinity": "an infinity in the code itself",
    "overflow": "finite in, infinite out",
    "perhaps inf - inf": "a sum that took opposite infinities and NaN",
    "NaN passing": "NaN handed on",
    "masking": "-inf of a mask",
    "infinity passing": "infinity handed on",
    "subnormal": "numbers next to zero",
}


class Cause(NamedTuple):
    """Confidence: high for what can only have happened, medium for what fits best, low for what may have."""

    name: str
    confidence: str
    reason: str
    benign: bool = False


def cause_of(instruction: Instruction) -> Cause | None:
    """The first rule that fits, of memory and constants, then of NaN, then of infinities."""
    if is_store(instruction.opcode):
        reason = "A NaN was written to global memory: other kernels and the model can read it."
        return Cause("stored NaN", "high", reason)
    has_nan = "NaN" in instruction.result or instruction.in_sources("NaN")
    if has_nan and re.search(r"[+-][QS]?NAN\b", instruction.sass):
        reason = (
            "The NaN is a constant of the instruction, written by the compiler for inputs outside the domain."
        )
        return Cause("constant NaN", "high", reason, benign=True)
    if instruction.class_of("NaN") == "birth":
        return _birth(instruction)
    return _of_zero_or_overflow(instruction) or _passing(instruction)


def _birth(instruction: Instruction) -> Cause:
    """Why the result is NaN where no source was."""
    base, opcode = _base(instruction), instruction.opcode
    factors, addend = _signs(instruction, 1) | _signs(instruction, 2), _signs(instruction, 3)
    infinite = instruction.in_sources(*INFINITIES)
    if base in _SUMS and factors:
        return _infinite_sum(instruction)
    if base in _PRODUCTS and factors:
        return Cause("0 x inf", "high", "A factor was infinite and none was NaN: the other was zero.")
    if base in _FUSED and factors and addend:
        reason = "A factor and the addend were infinite: opposite ones met (or a zero met the factor)."
        return Cause("inf - inf", "medium", reason)
    if base in _FUSED and factors:
        reason = "A factor was infinite and the addend was not: the other factor was zero."
        return Cause("0 x inf", "medium", reason)
    if base in _FUSED and addend:
        reason = "The addend was infinite: the product overflowed to the opposite infinity."
        return Cause("0 x inf", "medium", reason)
    if base in _TENSOR and infinite:
        reason = "Infinite inputs of a tensor core product: a zero met one, or opposite ones were added."
        return Cause("inf in a product sum", "medium", reason)
    if base in _TENSOR:
        reason = "No infinite input was seen: a partial sum overflowed both ways."
        return Cause("inf in a product sum", "low", reason)
    if base == "MUFU" and re.search(r"\.(RSQ|SQRT|LG2)", opcode):
        return Cause("outside the domain", "medium", "A root or logarithm of a negative number.")
    if base == "MUFU" and re.search(r"\.(SIN|COS)", opcode) and infinite:
        return Cause("outside the domain", "high", "A sine or cosine of an infinity.")
    if base == "MUFU":
        reason = "A special function gave NaN for an input that was not NaN."
        return Cause("outside the domain", "low", reason)
    return Cause("born unseen", "low", "The result was NaN and no source was seen to be NaN or infinite.")


def _infinite_sum(instruction: Instruction) -> Cause:
    """A sum of opposite infinities; in a softmax it says that a row is masked."""
    mask = _masked_why(instruction)
    if _opposite(instruction):
        reason = "Both sources were infinite, with opposite signs after the instruction's own minus."
        return Cause("inf - inf", "high", mask or reason, benign=bool(mask))
    reason = "A source was infinite; the other must have been the opposite infinity."
    return Cause("inf - inf", "medium", mask or reason, benign=bool(mask))


def _masked_why(instruction: Instruction) -> str:
    """Softmax subtracts each row's maximum: if all of a row is masked with -inf, that is (-inf) - (-inf)."""
    has_minus = "-" in instruction.sass.partition(" ")[2]
    if not (_may_be_softmax(instruction) and has_minus and instruction.in_sources("-infinity")):
        return ""
    return "(-inf) - (-inf) in a softmax: a row whose scores are all masked, or past the sequence's end."


def _may_be_softmax(instruction: Instruction) -> bool:
    return category(instruction.function) in _MAY_BE_SOFTMAX


def _base(instruction: Instruction) -> str:
    return instruction.opcode.partition(".")[0]


def _kinds(instruction: Instruction) -> set[str]:
    return {kind for site in instruction.sites.values() for kind in site.kinds}


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


def _of_zero_or_overflow(instruction: Instruction) -> Cause | None:
    """Divisions by zero, and infinities that no source was seen to bring."""
    opcode = instruction.opcode
    if "div0" in _kinds(instruction):
        if ".RSQ" in opcode:
            reason = "rsqrt(0): a square root written as x * rsqrt(x) passes here when x is 0."
            return Cause("division by zero", "high", reason, benign=True)
        return Cause("division by zero", "high", "The reciprocal of 0 was taken.")
    if not instruction.result & set(INFINITIES) or instruction.in_sources("NaN", *INFINITIES):
        return None
    num_operands = max(4, len(operands(instruction.sass)))
    if any(_signs(instruction, operand) for operand in range(1, num_operands)):
        reason = "The infinity is an operand written in the instruction."
        return Cause("constant infinity", "high", reason, benign=True)
    if ".EX2" in opcode:
        return Cause("overflow", "high", "An exponential grew past the largest number.")
    if ".LG2" in opcode:
        return Cause("overflow", "high", "The logarithm of 0 is -inf.", benign=True)
    if ".RCP" in opcode or ".RSQ" in opcode:
        return Cause("overflow", "medium", "The reciprocal of a number next to 0.")
    kind = (instruction.sites.get(0) or next(iter(instruction.sites.values()))).type
    limits = {"f16": "65,504", "bf16": "3.4e38", "f32": "3.4e38", "f64": "1.8e308"}
    reason = f"Finite sources, infinite result: past {limits.get(kind, 'the largest number')} of {kind}."
    return Cause("overflow", "medium" if _base(instruction) in _TENSOR else "high", reason)


def _passing(instruction: Instruction) -> Cause | None:
    """What only passes through."""
    nan_class, kinds = instruction.class_of("NaN"), _kinds(instruction)
    if _base(instruction) in _SUMS and nan_class == "transit" and _opposite(instruction):
        return _perhaps_infinite_sum(instruction)
    if nan_class in ("transit", "source_only"):
        reason = (
            "NaN in a source: born by another instruction of the list, or by one that nixnan does not look "
            "at."
        )
        return Cause("NaN passing", "low", reason)
    if "-infinity" in kinds and not kinds & {"NaN", "infinity"} and _may_be_softmax(instruction):
        reason = "-inf passes through a softmax and becomes exp(-inf) = 0: how attention masks work."
        return Cause("masking", "medium", reason, benign=True)
    if any(instruction.class_of(kind) in ("transit", "source_only", "birth") for kind in INFINITIES):
        reason = "Infinities pass through: none of them is born at these instructions by a rule of this list."
        return Cause("infinity passing", "low", reason)
    if "subnormal" in kinds:
        reason = "Numbers next to 0 lost digits; nothing is NaN or infinite here."
        return Cause("subnormal", "high", reason, benign=True)
    return None


def _perhaps_infinite_sum(instruction: Instruction) -> Cause:
    """NaN in and out, and infinities beside it: each line is of some warp, so they may not have met."""
    sources = [site for operand, site in instruction.sites.items() if operand]
    infinite = [line for site in sources for kind in INFINITIES if (line := site.first_of.get(kind))]
    if (
        min(infinite, default=0)  # 0: both are written in the instruction
        < instruction.sites[0].first_of["NaN"]
        < min(line for site in sources if (line := site.first_of.get("NaN")))
    ):
        reason = "Opposite infinities reached this sum, then its result was NaN, only later a source."
        return Cause("perhaps inf - inf", "medium", reason)
    reason = "Opposite infinities and NaN reached this sum: it may have made some NaN and passed on others."
    return Cause("perhaps inf - inf", "low", reason)


def causes(instructions: Iterable[Instruction]) -> list[dict[str, Any]]:
    """One row per cause, confidence and benign; for each instruction the first rule that fits counts.

    Keys: cause, what, confidence, benign, why, sites, lines, functions; file, line and raw: where it shows.
    Most serious first.
    """
    rows: dict[Cause, dict[str, Any]] = {}
    for instruction in instructions:
        if not (cause := cause_of(instruction)):
            continue
        cause = _less_sure(cause) if instruction.merged else cause
        if not (row := rows.get(cause)):
            first = min(
                instruction.sites.values(), key=lambda site: ("NaN" not in site.kinds, site.operand or 0)
            )
            shows = {"file": first.file, "line": first.line, "raw": first.raw}
            row = rows[cause] = {"sites": 0, "lines": 0, "functions": {}, **shows}
        row["sites"] += 1
        row["lines"] += instruction.lines
        row["functions"].setdefault(instruction.function)
    order = list(CAUSES)
    ranked = sorted(rows, key=lambda c: (c.benign, order.index(c.name), -LEVELS.index(c.confidence)))
    return [
        {
            "cause": cause.name,
            "what": CAUSES[cause.name],
            "confidence": cause.confidence,
            "benign": cause.benign,
            "why": cause.reason,
            **rows[cause],
        }
        for cause in ranked
    ]


def _less_sure(cause: Cause) -> Cause:
    """Several instructions share a text: what is sure of one of them may not be of all."""
    if cause.confidence == "low":
        return cause
    lower = LEVELS[LEVELS.index(cause.confidence) - 1]
    return cause._replace(confidence=lower, reason=f"{cause.reason} Several instructions share this text.")
