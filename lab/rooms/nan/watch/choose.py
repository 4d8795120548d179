"""The best way of counting on a device, or the one that was asked for."""

from __future__ import annotations

from functools import partial

import torch

from lab.errors import MissingError, UsageError
from lab.rooms.nan.watch.count import Counter, bits_counts, norm_counts, plain_counts, screen_counts
from lab.rooms.nan.watch.native.counting import NativeCounts
from lab.rooms.nan.watch.native.find import library, library_state


def choose_counter(device: torch.device) -> tuple[str, Counter, str]:
    """(name, function, reason) of the best way on `device`."""
    if device.type != "cuda":
        return "bits", counter_named("bits"), f"the model is not on a GPU ({library_state()})"
    try:
        from lab.rooms.nan.watch.kernel_counter import KernelCounter
    except ImportError as error:
        return "norm", norm_counts, f"Triton is not available ({error})"
    return "kernel", KernelCounter(), "Triton is available"


def counter_named(name: str) -> Counter:
    """The counter of this name. Raises UsageError for an unknown name, MissingError without Triton."""
    if name == "bits":
        loaded = library()
        return NativeCounts(loaded).exact if loaded is not None else bits_counts
    known: dict[str, Counter] = {"plain": plain_counts, "norm": norm_counts}
    if name in known:
        return known[name]
    if name != "kernel":
        raise UsageError(f"no counter {name!r}", fix="use kernel, bits, norm or plain")
    try:
        from lab.rooms.nan.watch.kernel_counter import KernelCounter
    except ImportError as error:
        raise MissingError(f"the kernel needs Triton: {error}", fix="use counter=norm") from error
    return KernelCounter()


def cpu_counters() -> tuple[Counter, Counter, bool]:
    """On a CPU: counts with magnitudes, the cheapest that finds what is bad, and whether both are in C."""
    loaded = library()
    if loaded is None:
        return partial(bits_counts, subnormals=False), screen_counts, False
    native = NativeCounts(loaded)
    return native.magnitudes, native.screen, True
