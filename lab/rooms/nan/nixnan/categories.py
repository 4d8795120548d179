"""The category of a function in a nixnan log: one table, before lab's own classes of kernel names.

nixnan cuts names at the first `<` or `(`, and reports the code of a device function once more under its own
name (see `twins`). A name with nothing left is `unnamed`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from lab.recordings.names import kernel_class

# First match counts; then the lab's table for kernel names; then `other`.
_RULES = (
    ("unnamed", re.compile(r"^(void )?(at::native::)?$"), "the name is cut before it says anything"),
    ("device function", re.compile(r"^__(cuda_sm|internal)"), "a function that kernels call"),
    (
        "quantized gemm",
        re.compile(r"kgemm_4bit|gemm_4bit|igemmlt|int8_mm|w4a16|marlin"),
        "multiplies quantized weights",
    ),
    ("quant", re.compile(r"k(De)?[Qq]uantize"), "packs or unpacks quantized weights"),
    ("gemv", re.compile(r"^std::enable_if$"), "cuBLAS' gemvx kernels are cut to their return type"),
    ("gemm", re.compile(r"^(void )?gemmk1_kernel"), "cuBLAS' product over one"),
)
_NUMBER = re.compile(r"_\d{2,}$")  # compilers number the kernels they make; no row of a table looks at that
LABELS = {
    "attention": "flash attention",
    "splitk_reduce": "split-K sum",
    "gemm": "GEMM",
    "gemv": "GEMV",
    "quantized gemm": "quantized GEMM",
    "quant": "quantization",
}


def category(function: str) -> str:
    """The category of one function: a word of the table, or one of `lab.recordings.names.CLASSES`."""
    return _category(_NUMBER.sub("_00", function))


@lru_cache(maxsize=1 << 16)
def _category(function: str) -> str:
    rule_name = next((word for word, pattern, _ in _RULES if pattern.search(function)), None)
    return rule_name or kernel_class(function)


def label(word: str) -> str:
    """The category as a page writes it."""
    return LABELS.get(word, word)


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
