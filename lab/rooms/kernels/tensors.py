"""Dtypes and strides: names as recordings write them, bytes per element, extent of a strided tensor."""

from __future__ import annotations

from collections.abc import Sequence

# C++ type names in recordings (Kineto's "Input type", the execution trace's "Tensor(...)") -> torch's names.
DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "Half": "float16",
    "half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "char": "int8",
    "unsigned char": "uint8",
    "byte": "uint8",
    "bool": "bool",
    "unsigned short": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
}
# A replay does not rebuild this one; the catalogue names it.
_NAMED_ONLY = {"c10::complex<c10::Half>": "complex32"}
_BY_LOWER_CASE = {cpp.lower(): name for cpp, name in (DTYPES | _NAMED_ONLY).items()}

_BY_SIZE = {
    1: "int8 uint8 bool float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz",
    2: "float16 bfloat16 int16 uint16",
    4: "float32 int32 uint32",
    8: "float64 int64 uint64 complex64",
    16: "complex128",
}
ITEM_BYTES = {name: size for size, names in _BY_SIZE.items() for name in names.split()}
FLOATS = frozenset(name for name in ITEM_BYTES if "float" in name or "complex" in name)


def dtype_name(cpp: str) -> str | None:
    """torch's name of a C++ dtype in any case; None if it is not a dtype."""
    return _BY_LOWER_CASE.get(cpp.strip().lower())


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last addressed one, 0 for an empty tensor."""
    if any(size == 0 for size in shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))
