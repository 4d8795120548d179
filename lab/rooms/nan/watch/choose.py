"""The best way of counting on a device, or the one that was asked for."""

from __future__ import annotations

import torch

from lab.errors import MissingError, UsageError
from lab.rooms.nan.watch.count import Counter, bits_counts, norm_counts, plain_counts


def choose_counter(device: torch.device) -> tuple[str, Counter, str]:
    """(name, function, reason) of the best way on `device`."""
    if device.type != "cuda":
        return "bits", bits_counts, "the model is not on a GPU"
    try:
        from lab.rooms.nan.watch.kernel_counter import KernelCounter
    except ImportError as error:
        return "norm", norm_counts, f"Triton is not available ({error})"
    return "kernel", KernelCounter(), "Triton is available"


def counter_named(name: str) -> Counter:
    """The counter of this name. Raises UsageError for an unknown name, MissingError without Triton."""
    known: dict[str, Counter] = {"plain": plain_counts, "norm": norm_counts, "bits": bits_counts}
    if name in known:
        return known[name]
    if name != "kernel":
        raise UsageError(f"no counter {name!r}", fix="use kernel, bits, norm or plain")
    try:
        from lab.rooms.nan.watch.kernel_counter import KernelCounter
    except ImportError as error:
        raise MissingError(f"the kernel needs Triton: {error}", fix="use counter=norm") from error
    return KernelCounter()
