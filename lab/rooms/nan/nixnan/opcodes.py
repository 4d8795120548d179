"""What an opcode says: its name in an instruction, whether it stores, the types of its operands."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1 << 14)
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
        return (
            "f32"
            if "F32" in flags and operand == 0
            else "bf16"
            if any(f.startswith("BF16") for f in flags)
            else "f16"
        )
    if name == "MUFU":
        return "f64" if any(flag.endswith("64H") for flag in flags) else "f16" if "F16" in flags else "f32"
    return _PLAIN_TYPES.get(name)


_PLAIN_TYPES = {
    "FADD": "f32",
    "FMUL": "f32",
    "FFMA": "f32",
    "FSEL": "f32",
    "FMNMX": "f32",
    "FSET": "f32",
    "FCHK": "f32",
    "DADD": "f64",
    "DMUL": "f64",
    "DFMA": "f64",
    "DMMA": "f64",
    "DSETP": "f64",
}
