"""What an opcode says (whether it stores, the types of its operands), and a function's category by its name.

nixnan cuts names at the first `<` or `(`, and reports the code of a device function once more under its own
name (see `twins_of`). A name with nothing left is `unnamed`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from lab.recordings.names import kernel_class

_PLAIN_TYPES = {
    **dict.fromkeys(("FADD", "FMUL", "FFMA", "FSEL", "FMNMX", "FSET", "FCHK"), "f32"),
    **dict.fromkeys(("DADD", "DMUL", "DFMA", "DMMA", "DSETP"), "f64"),
}
# First match counts; then the lab's table for kernel names; then `other`.
_RULES = (
    ("unnamed", re.compile(r"^(void )?(at::native::)?$")),  # cut before it says anything
    ("device function", re.compile(r"^__(cuda_sm|internal)")),  # kernels call it
    ("quantized gemm", re.compile(r"kgemm_4bit|gemm_4bit|igemmlt|int8_mm|w4a16|marlin")),
    ("quant", re.compile(r"k(De)?[Qq]uantize")),  # packs or unpacks quantized weights
    ("gemv", re.compile(r"^std::enable_if$")),  # cuBLAS' gemvx kernels are cut to their return type
    ("gemm", re.compile(r"^(void )?gemmk1_kernel")),  # cuBLAS' product over one
)
_NUMBER = re.compile(r"_\d{2,}$")  # compilers number the kernels they make; no row of a table looks at that


def opcode_of(sass: str) -> str:
    """The first word of an instruction after its predicate: `@!P1 FFMA.FTZ R1, ...` is `FFMA.FTZ`."""
    words = sass.split(None, 2)
    if not words:
        return ""
    return words[1] if words[0].startswith("@") and len(words) > 1 else words[0]


def is_store(opcode: str) -> bool:
    """Whether lines of this opcode come from nixnan's memory check, which looks only at global stores."""
    return opcode.startswith("STG")


@lru_cache(maxsize=1 << 12)
def type_of(opcode: str, operand: int | None) -> str | None:
    """The type of an operand by its opcode; None if the opcode does not say (stores, moves, selects).

    Tensor core products name the accumulator first and the inputs last: in HMMA.16816.F32.BF16 operands 0 and
    3 are f32, 1 and 2 bf16.
    """
    name, *flags = opcode.split(".")
    if name == "HMMA":
        inputs = "bf16" if "BF16" in flags else "f32" if "TF32" in flags else "f16"
        outputs = "f32" if "F32" in flags else "f16"
        return None if operand is None else outputs if operand in (0, 3) else inputs
    if name in ("HADD2", "HMUL2", "HFMA2"):
        if "F32" in flags and operand == 0:
            return "f32"
        return "bf16" if any(flag.startswith("BF16") for flag in flags) else "f16"
    if name == "MUFU":
        return "f64" if any(flag.endswith("64H") for flag in flags) else "f16" if "F16" in flags else "f32"
    return _PLAIN_TYPES.get(name)


def category(function: str) -> str:
    """The category of one function: a word of the table, or one of `lab.recordings.names.CLASSES`."""
    return _category(_NUMBER.sub("_00", function))


@lru_cache(maxsize=1 << 16)
def _category(function: str) -> str:
    rule_name = next((word for word, pattern in _RULES if pattern.search(function)), None)
    return rule_name or kernel_class(function)


def shown(function: str) -> str:
    """A function's name for a page: without `void `, and with words where nothing is left."""
    name = function.removeprefix("void ").strip()
    return name or "(name cut away)"


def categories(functions: Mapping[str, int], same_as: Mapping[str, str]) -> dict[str, int]:
    """Category -> lines, largest first; a device function's lines go to the kernel it repeats.

    They add up to all lines.
    """
    lines_by_category: dict[str, int] = {}
    for name, lines in functions.items():
        word = category(same_as.get(name, name))
        lines_by_category[word] = lines_by_category.get(word, 0) + lines
    return dict(sorted(lines_by_category.items(), key=lambda item: -item[1]))
