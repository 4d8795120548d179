"""What kind of work a GPU row does: by the op that launched it first, by the kernel's name second.

A name says what code ran, not why, so an op that is known decides, except for what its name shows to be a
helper: copies, fills, the sum of a split product. Names come demangled (nsys writes `<unnamed>::`, `(int)4`
and `[lambda() (instance 1)]` where Kineto writes `(anonymous namespace)::`, `4` and `{lambda()#1}`), mangled
(`_ZN2ck...`), or cut at the first `<` or `(` (nixnan).
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache, lru_cache

from lab.perfmodel.calls import op_of, rows_of
from lab.perfmodel.communication import OPS as COMMUNICATION_OPS
from lab.perfmodel.communication import communication

CLASSES = (
    "gemm",
    "gemv",
    "splitk_reduce",
    "attention",
    "conv",
    "scan",
    "softmax",
    "norm",
    "optimizer",
    "triton",
    "comm",
    "copy",
    "index",
    "mask",
    "reduce",
    "rope",
    "quant",
    "rng",
    "memset",
    "memcpy",
    "elementwise",
    "other",
)

_NOT_GEMM = r"flash|fmha|attn|attention|splitKreduce|execute_split_k"
_RETURNS = re.compile(r"^void\s+")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the tables, compiled when a name first comes so far: all of them take 10 ms."""
    return re.compile(pattern, re.IGNORECASE)


@cache
def _patterns() -> dict[str, list[tuple[str, str]]]:
    """What names.csv tells of a kernel, an op and a GEMM: (answer, pattern)."""
    patterns: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows_of("names.csv"):
        patterns[row["of"]].append((row["is"], row["pattern"]))
    return patterns


def _answer_to(of: str, name: str) -> str:
    """The first answer whose pattern fits a name; "" if none does."""
    return next((answer for answer, pattern in _patterns()[of] if _compiled(pattern).search(name)), "")


@lru_cache(maxsize=1 << 16)
def kernel_class(name: str, op: str = "") -> str:
    """One of CLASSES for a kernel, and the op that launched it where that is known; `other` if neither tells.

    An op of several kinds of kernels (a mixture of experts) only decides where the name tells nothing.
    """
    by_name, by_op = _class_of_name(name), op_class(op)
    if by_op in ("", by_name) or by_name in ("comm", *_HELPERS):
        return by_op if by_name == "elementwise" and by_op in _LOOPS else by_name
    if by_name == "other" or by_op == "comm" or (by_op not in _LOOPS and op_of(op).model != "experts"):
        return by_op
    return by_name


@lru_cache(maxsize=1 << 16)
def _class_of_name(name: str) -> str:
    """The first row of the table that fits the kernel's name; `other` where none does."""
    bare = _RETURNS.sub("", name)
    kind = _answer_to("kernel", bare) or "other"
    return "comm" if kind not in ("memcpy", "memset") and communication(bare) else kind


# Kernels that ops of every class launch beside their own.
_HELPERS = ("memcpy", "memset", "copy", "splitk_reduce", "elementwise")
# Ops whose kernels only loop: a name that says more is right.
_LOOPS = ("elementwise", "copy", "index", "mask", "reduce", "rng")


@lru_cache(maxsize=1 << 16)
def op_class(op: str) -> str:
    """The class of work that an op is for; "" for an op that does not tell."""
    if op.startswith(COMMUNICATION_OPS):
        return "comm"
    if kind := op_of(op).kind:
        return kind
    is_range = "::" not in op and not op.startswith("FlashAttn")  # or a kernel of torch.compile
    return "" if is_range or op.startswith("aten::") else _answer_to("op", op)


def class_of_launch(name: str, op: str, kind: str) -> str:
    """The class of a kernel, of a copy or fill (a class of its own), or of a CPU op that stands for one."""
    if kind == "cpu_op":
        return op_class(op) or "elementwise"
    return kernel_class(name, op) if kind == "kernel" else kind


def is_matmul(name: str) -> bool:
    """Whether the kernel multiplies matrices (or a matrix and a vector); not attention, conv or split-K sums.

    bitsandbytes' kgemm_4bit multiplies and dequantizes in one: its class is `quant`, and it counts here.
    """
    return kernel_class(name) in ("gemm", "gemv") or "kgemm_4bit" in name


# Ops that call others, which may turn out to be views.
_COMPOSITES = ("linear", "matmul", "scaled_dot_product_attention", "layer_norm", "rms_norm", "softmax")


def moves_no_data(op: str) -> bool:
    """Whether a CPU op moves no data: views and allocations, and ops outside `aten` except collectives."""
    if op.startswith("aten::"):
        return op_of(op).model == "nothing"
    return not op.startswith("c10d::") and op != "_c10d_functional::wait_tensor"


def works_itself(op: str) -> bool:
    """Whether a CPU op counts as a launch while the ops that it calls do not: a product copies its bias."""
    space, _, name = op.partition("::")
    strong = op_class(op) in ("gemm", "gemv", "conv", "attention", "softmax", "norm")
    return space == "aten" and strong and name.rstrip("_") not in _COMPOSITES


@lru_cache(maxsize=1 << 16)
def gemm_library(name: str) -> str:
    """The library behind a GEMM kernel, "" for any other kernel."""
    if _compiled(_NOT_GEMM).search(name):
        return ""
    return _answer_to("gemm", name)
