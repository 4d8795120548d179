"""Kernels that move data between ranks, and what a rank must send and add up in a collective.

Kernels of NCCL and RCCL carry metadata in most recordings; the others (custom all-reduce, symmetric memory,
expert dispatch) have a name only, so the kind of call comes from it or from the op that launched it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from lab.perfmodel.calls import Work
from lab.perfmodel.dtypes import item_bytes


class Communication(NamedTuple):
    """A communication kernel: its kind as in `pairing.rows`, "" where the name does not say.

    blocking: no rank leaves before all have entered.
    """

    kind: str
    blocking: bool = True


# Part of a name without underscores -> kind; the first match counts.
KINDS = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("barrier", "all_reduce"),
    ("broadcast", "broadcast"),
    ("sendrecv", "p2p"),
    ("send", "p2p"),
    ("recv", "p2p"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
)

# Names that hold the words and move nothing between ranks: copies, generated reductions, layouts.
_LOCAL = re.compile(
    r"__amd_rocclr_|^triton_(?!.*(symm|nvshmem))|get_dispatch_layout|^(void )?(at::native|cub::)",
    re.IGNORECASE,
)

# Pattern, kind ("": the name's own words say it); the first match counts.
_TABLE = [
    (r"mscclKernel_|mscclpp|nvshmem|nccl|rccl(?!r)", ""),
    # custom and quick all-reduce, TensorRT-LLM
    (r"cross_device_reduce_[12]stage|quickreduce|allreduce_prototype", "all_reduce"),
    (r"allreduce_fusion_kernel|(one|two)shotAllreduce", "all_reduce"),
    # symmetric memory
    (r"multimem_all_gather", "all_gather"),
    (r"multimem_(one_shot_|two_shot_)?(all_)?reduce", "all_reduce"),
    (r"(one|two)_shot", ""),
    # DeepEP, MORI
    (r"internode_ll::(dispatch|combine)|(deep_ep|intra_?node|inter_?node).*(dispatch|combine)", "all_to_all"),
    (r"\bEp(Dispatch|Combine)\w*", "all_to_all"),
    (r"all_?reduce|all_?gather|all_?to_?all|reduce_?scatter_", ""),
]
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), kind) for pattern, kind in _TABLE]
_NOT_BLOCKING = re.compile(r"internode_ll::(dispatch|combine)", re.IGNORECASE)  # DeepEP's low latency

# Ops that launch communication, by the start of their names.
OPS = (
    "c10d::",
    "_c10d_functional::",
    "record_param_comms",
    "gloo:",
    "nccl:",
    "_C_custom_ar::",
    "symm_mem::",
)


@lru_cache(maxsize=1 << 16)
def communication(kernel: str) -> Communication | None:
    """Classify a kernel by name; None if it does not communicate."""
    if _LOCAL.search(kernel):
        return None
    for pattern, kind in _PATTERNS:
        if pattern.search(kernel):
            return Communication(kind or kind_in(kernel), not _NOT_BLOCKING.search(kernel))
    return None


def kind_in(text: str) -> str:
    """The kind of call that a collective's, an op's or a kernel's name says; "" if none."""
    head = re.split(r"[(<]", text, maxsplit=1)[0] if "(" in text or "<" in text else text
    plain = head.lower().replace("_", "")
    return next((kind for part, kind in KINDS if part in plain), "")


# Kind of call -> parts of the message that a rank of n sends, and adds up, in units of (n - 1) / n;
# nccl-tests (doc/PERFORMANCE.md) has the same factors for its bus bandwidth.
_PARTS = {
    "all_reduce": (2, 1),
    "reduce_scatter": (1, 1),
    "all_gather": (1, 0),
    "all_to_all": (1, 0),
}
_WHOLE_MESSAGE = ("broadcast", "reduce", "p2p", "gather", "scatter")


def collective_work(kind: str, in_nelems: int, out_nelems: int, dtype: str, ranks: int) -> Work | None:
    """Return the mean work of one rank; None where kind, size, type or number of ranks is not known.

    kind: as `kind_in` names it; the message is the larger of both buffers.
    """
    nelems, item = max(in_nelems, out_nelems), item_bytes(dtype)
    if nelems < 0 or not item or (kind in _PARTS and ranks < 1):
        return None
    if kind in _WHOLE_MESSAGE:
        sent, added = float(nelems), 0.0
    elif kind in _PARTS:
        sent, added = (parts * nelems * (ranks - 1) / ranks for parts in _PARTS[kind])
    else:
        return None
    params = {"nelems": nelems, "ranks": ranks}
    return Work("Collective", params, added, sent * item, "link", dtype)
