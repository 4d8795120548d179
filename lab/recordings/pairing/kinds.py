"""The kind of a collective, by its name, and its bandwidth factor."""

from __future__ import annotations

from lab.perfmodel.communication import communication, kind_in

# No rank leaves such a call before the last has entered it, so their times overlap and their ends agree.
BLOCKING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

# Every rank of such a call reports the same sizes.
SAME_SIZES = ("all_reduce", "all_gather", "reduce_scatter")


def kind_of(collective: str, kernel: str = "") -> str:
    """all_reduce, all_gather, ... from the profiler's name, otherwise the kernel's; "" if unknown."""
    kind = kind_in(collective)
    if kind or not kernel:
        return kind
    kernel_kind = communication(kernel)
    return kernel_kind.kind if kernel_kind else kind_in(kernel)


def is_blocking(kind: str, kernel: str = "") -> bool:
    """Whether no rank leaves the call before all have entered it."""
    kernel_kind = communication(kernel) if kernel else None
    return kind in BLOCKING and (kernel_kind is None or kernel_kind.blocking)


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
