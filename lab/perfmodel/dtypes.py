"""Element types: torch's name, bytes and rate of every spelling that recorders use."""

from __future__ import annotations

# torch's name -> bytes per element, its rate in boards.toml, spellings of Kineto, execution traces and NCCL.
_TABLE: dict[str, tuple[int, str, str]] = {
    "float64": (8, "fp64", "double"),
    "float32": (4, "fp32", "float"),
    "float16": (2, "fp16", "c10::Half|Half|half"),
    "bfloat16": (2, "bf16", "c10::BFloat16|BFloat16"),
    "float8_e4m3fn": (1, "fp8", "c10::Float8_e4m3fn|Float8_e4m3fn|Float8E4M3FN"),
    "float8_e5m2": (1, "fp8", "c10::Float8_e5m2|Float8_e5m2|Float8E5M2"),
    "float8_e4m3fnuz": (1, "fp8", "c10::Float8_e4m3fnuz|Float8_e4m3fnuz"),
    "float8_e5m2fnuz": (1, "fp8", "c10::Float8_e5m2fnuz|Float8_e5m2fnuz"),
    "float8_e8m0fnu": (1, "", "c10::Float8_e8m0fnu|Float8_e8m0fnu"),
    "float4_e2m1fn_x2": (1, "fp4", "c10::Float4_e2m1fn_x2|Float4_e2m1fn_x2"),
    "int8": (1, "int8", "signed char|char"),
    "uint8": (1, "int8", "unsigned char|byte"),
    "bool": (1, "", ""),
    "int16": (2, "", "short int|short"),
    "uint16": (2, "", "unsigned short"),
    "int32": (4, "", "int"),
    "uint32": (4, "", "unsigned int"),
    "int64": (8, "", "long int|long|long long"),
    "uint64": (8, "", "unsigned long"),
    "complex32": (4, "", "c10::complex<c10::Half>"),
    "complex64": (8, "", "c10::complex<float>|ComplexFloat"),
    "complex128": (16, "", "c10::complex<double>|ComplexDouble"),
}
# Every spelling, in its own case, and torch's names -> torch's name.
SPELLINGS = {
    spelling: name
    for name, (_, _, spellings) in _TABLE.items()
    for spelling in (name, *filter(None, spellings.split("|")))
}
_BY_LOWER_CASE = {spelling.lower(): name for spelling, name in SPELLINGS.items()}
ITEM_BYTES = {name: num_bytes for name, (num_bytes, _, _) in _TABLE.items()}
# float4 counts pairs: two numbers in each byte.
ITEMS_PER_ELEMENT = {"float4_e2m1fn_x2": 2}


def dtype_name(spelling: str) -> str | None:
    """Return torch's name of an element type in any spelling and case; None if it is not a dtype."""
    return _BY_LOWER_CASE.get(spelling.strip().lower())


def item_bytes(spelling: str) -> int:
    """Return bytes per element, 0 if it is not a dtype."""
    name = dtype_name(spelling)
    return ITEM_BYTES[name] if name else 0


def is_complex(spelling: str) -> bool:
    return (dtype_name(spelling) or "").startswith("complex")


def rate_name(spelling: str) -> str:
    """Return fp64, fp32, fp16, bf16, fp8, fp4 or int8; "" for types without a rate of their own."""
    name = dtype_name(spelling)
    return _TABLE[name][1] if name else ""
