"""Which way of counting: by name, or the best one for a device. Above all of them, so none imports this."""

from __future__ import annotations

import torch

from lab.errors import MissingError, UsageError
from lab.rooms.nan.watch.count import Counter, NativeCounts, norm_counts, plain_counts
from lab.rooms.nan.watch.native import library, library_state


def choose_counter(device: torch.device) -> tuple[str, Counter, str]:
    """(name, function, reason) of the best way on `device`."""
    if device.type != "cuda":
        name = "bits" if library() is not None else "plain"
        return name, counter_named(name), f"the model is not on a GPU ({library_state()})"
    try:
        return "kernel", counter_named("kernel"), "Triton is available"
    except MissingError as error:
        return "norm", norm_counts, f"Triton is not available ({error.__cause__})"


def counter_named(name: str) -> Counter:
    """The counter of this name. Raises UsageError for an unknown name, MissingError without Triton."""
    if name == "bits":
        loaded = library()
        return NativeCounts(loaded).exact if loaded is not None else plain_counts
    counters: dict[str, Counter] = {"plain": plain_counts, "norm": norm_counts}
    if name in counters:
        return counters[name]
    if name != "kernel":
        raise UsageError(f"no counter {name!r}", fix="use kernel, bits, norm or plain")
    try:
        from lab.rooms.nan.watch.kernel import KernelCounter
    except ImportError as error:
        raise MissingError(f"the kernel needs Triton: {error}", fix="use counter=norm") from error
    return KernelCounter()
