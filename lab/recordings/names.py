"""A kernel's name short enough to read; its class, by name and by op, is `lab.perfmodel.classes`'.

One form for every room and both collectors. Names come demangled (nsys writes `<unnamed>::`, `(int)4` and
`[lambda() (instance 1)]` where Kineto writes `(anonymous namespace)::`, `4` and `{lambda()#1}`), mangled
(`_ZN2ck...`), or cut at the first `<` or `(` (nixnan).
"""

from __future__ import annotations

import re
from functools import lru_cache

from lab.perfmodel.classes import CLASSES, gemm_library, is_matmul, kernel_class

__all__ = ["CLASSES", "gemm_library", "is_matmul", "kernel_class", "short_dims", "short_name"]

# Functions whose names only say how they loop; their template arguments say what they do.
_GENERIC = re.compile(
    r"elementwise_kernel|multi_tensor_apply_kernel|reduce_kernel|^[Kk]ernel2?$|device_kernel|with_index|for_each"
)
_WRAPPERS = {
    "AUnaryFunctor",
    "BUnaryFunctor",
    "BinaryFunctor",
    "ReduceOp",
    "PointwiseOp",
    "OffsetCalculator",
    "TrivialOffsetCalculator",
    "TensorListMetadata",
    "TensorListScalarListMetadata",
    "gpu_kernel_impl",
    "gpu_kernel_impl_nocast",
}
_TELLING = re.compile(
    r"launch_\w+|[A-Za-z_]\w*(?:Functor|gemm|_kernel|_cuda|Impl|Ops?(?![a-z])|_functor)\w*", re.IGNORECASE
)
_PLAIN = re.compile(r"^(\[?(CUDA )?(memcpy|memset)|Copy(Host|Device)To|MEMORY_COPY_)", re.IGNORECASE)
_NOISE = re.compile(r"<unnamed>::|\(anonymous namespace\)::|\{anonymous\}::")
_OPENING, _CLOSING = "<([{", ">)]}"
_DIGITS = re.compile(r"\d+")
_NO_TENSORS = re.compile(r"(?:,\s*\[\])+\s*\]$")


def short_dims(dims: str) -> str:
    """Shapes for a sentence: without the `[]` of last arguments that are not tensors."""
    return _NO_TENSORS.sub("]", dims)


@lru_cache(maxsize=1 << 16)
def short_name(name: str) -> str:
    """A name for a table or a figure: the function without namespaces, types and parameters.

    Functions that only loop keep the functor that says what they do
    (`vectorized_elementwise_kernel<MulFunctor>`, `Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>`),
    and both collectors' spellings give the same. Kernels that differ in types only share a short name: a
    label, not a key.
    """
    if _PLAIN.search(name):
        return name
    if name.startswith("_Z"):
        return _last_of_mangled(name)
    function = _last_word(_NOISE.sub("", name).strip())
    head = re.split(r"[<(]", function, maxsplit=1)[0]
    if not head:
        return name
    parts = head.split("::")
    base = "::".join(parts[-2:]) if parts[-1].lower() == "kernel" else parts[-1]
    if not _GENERIC.search(parts[-1]):
        return base or name
    functor = next((word for word in _TELLING.findall(function[len(head) :]) if word not in _WRAPPERS), "")
    return f"{base}<{functor}>" if functor else base


def _last_word(name: str) -> str:
    """What follows the last blank outside brackets: the function, without its return type."""
    depth, start = 0, 0
    for index, char in enumerate(name):
        if char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth = max(0, depth - 1)
        elif char == " " and depth == 0:
            start = index + 1
    return name[start:]


def _last_of_mangled(name: str) -> str:
    """The innermost name of an Itanium-mangled function, a series of lengths and identifiers."""
    index, innermost = (3 if name.startswith("_ZN") else 2), ""
    while match := _DIGITS.match(name, index):
        index = match.end() + int(match.group())
        innermost = name[match.end() : index] or innermost
    return innermost or name
