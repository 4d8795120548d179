"""The kind of a collective, by its name, and its bandwidth factor."""

from __future__ import annotations

# Part of a collective's name without underscores -> its kind; the first match counts.
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

# No rank leaves such a call before the last has entered it, so their times overlap and their ends agree.
BLOCKING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

# Every rank of such a call reports the same sizes.
SAME_SIZES = ("all_reduce", "all_gather", "reduce_scatter")


def kind_of(collective: str, kernel: str = "") -> str:
    """all_reduce, all_gather, ... from the profiler's name, otherwise the kernel's; "" if unknown."""
    for text in (collective, kernel.split("(")[0]):
        plain = text.lower().replace("_", "")
        for part, kind in KINDS:
            if part in plain:
                return kind
    return ""


def bus_factor(kind: str, group_size: int) -> float:
    """Bus bandwidth over algorithm bandwidth; NaN for an unknown kind or size.

    Source: NVIDIA/nccl-tests `doc/PERFORMANCE.md`.
    """
    if group_size < 1 or not kind:
        return float("nan")
    if kind == "all_reduce":
        return 2 * (group_size - 1) / group_size
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (group_size - 1) / group_size
    return 1.0
