"""The best way of counting on a device, or the one that was asked for."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from lab.errors import MissingError, UsageError
from lab.rooms.nan.watch.count import (
    DTYPE,
    KINDS,
    LOW,
    Counter,
    clean_rows,
    norm_counts,
    plain_counts,
    refuse_freed,
)
from lab.rooms.nan.watch.native.find import library, library_state


def choose_counter(device: torch.device) -> tuple[str, Counter, str]:
    """(name, function, reason) of the best way on `device`."""
    if device.type != "cuda":
        name = "bits" if library() is not None else "plain"
        return name, counter_named(name), f"the model is not on a GPU ({library_state()})"
    try:
        from lab.rooms.nan.watch.kernel_counter import KernelCounter
    except ImportError as error:
        return "norm", norm_counts, f"Triton is not available ({error})"
    return "kernel", KernelCounter(), "Triton is available"


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
        from lab.rooms.nan.watch.kernel_counter import KernelCounter
    except ImportError as error:
        raise MissingError(f"the kernel needs Triton: {error}", fix="use counter=norm") from error
    return KernelCounter()


def cpu_counters() -> tuple[Counter, Counter]:
    """In C: counts with magnitudes, and the cheapest that finds what is bad.

    Raises MissingError without C.
    """
    loaded = library()
    if loaded is None:
        raise MissingError("counting bits needs a C compiler", fix="use counter=plain")
    native = NativeCounts(loaded)
    return native.magnitudes, native.screen


C_FORMATS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}
_ON_CPU: Callable[[Tensor], bool] = (
    attrgetter("is_cpu") if hasattr(Tensor, "is_cpu") else lambda tensor: tensor.device.type == "cpu"
)


class NativeCounts:
    """The ways of counting on a CPU in C. Raises RuntimeError for a library of another version."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        if loaded.count_kinds() != len(KINDS):
            raise RuntimeError("counts.c and KINDS have different columns")
        self._count: Callable[..., int] = loaded.count_tensors

    def exact(self, tensors: Sequence[Tensor]) -> np.ndarray:
        """Count as `plain_counts` does."""
        return self._rows(tensors, subnormals=True)

    exact.reads_only = True  # type: ignore[attr-defined]

    def magnitudes(self, tensors: Sequence[Tensor]) -> np.ndarray:
        """Count without subnormals (-1), which is half of the price."""
        return self._rows(tensors, subnormals=False)

    def screen(self, tensors: Sequence[Tensor]) -> np.ndarray:
        """Count only if anything is bad: of clean tensors nothing else is known (-1)."""
        kind = _only_type(tensors)
        if kind is not None:
            sizes = array("q", map(Tensor.numel, tensors))
            if min(sizes) and not self._call(tensors, sizes, kind, False, None):
                return clean_rows(len(tensors))
        rows = self._rows(tensors, subnormals=False)
        return rows if (rows[:, :3] > 0).any() else clean_rows(len(tensors))

    def _rows(self, tensors: Sequence[Tensor], *, subnormals: bool) -> np.ndarray:
        kind = _only_type(tensors)
        if kind is not None:
            sizes = array("q", map(Tensor.numel, tensors))
            if min(sizes):
                return self._of_one_type(tensors, sizes, kind, subnormals)
        return self._of_several(tensors, subnormals)

    def _of_one_type(
        self, tensors: Sequence[Tensor], sizes: array[int], kind: int, subnormals: bool
    ) -> np.ndarray:
        """None of them is empty, and all are on the CPU."""
        rows = np.empty((len(sizes), len(KINDS)))
        self._call(tensors, sizes, kind, subnormals, rows.ctypes.data)
        return rows

    def _call(
        self, tensors: Sequence[Tensor], sizes: array[int], kind: int, subnormals: bool, place: int | None
    ) -> int:
        """How many tensors hold something bad; their rows at `place`."""
        addresses = array("Q", map(Tensor.data_ptr, tensors))
        if min(addresses) < LOW:
            refuse_freed(tensors)
        # Memory has gaps, or the other sign (`x.conj().imag`): then a copy is counted.
        if not all(map(Tensor.is_contiguous, tensors)) or any(map(Tensor.is_neg, tensors)):
            with torch.no_grad():
                tensors = [tensor.resolve_neg().contiguous() for tensor in tensors]
            addresses = array("Q", map(Tensor.data_ptr, tensors))
        return self._count(len(sizes), addresses.tobytes(), sizes.tobytes(), kind, subnormals, place)

    def _of_several(self, tensors: Sequence[Tensor], subnormals: bool) -> np.ndarray:
        """Types side by side; what C does not read is counted by torch's own predicates."""
        refuse_freed(tensors)
        rows = np.empty((len(tensors), len(KINDS)))
        places: dict[int | None, list[int]] = {}
        for index, tensor in enumerate(tensors):
            readable = _ON_CPU(tensor) and tensor.numel()
            places.setdefault(C_FORMATS.get(tensor.dtype) if readable else None, []).append(index)
        for kind, members in places.items():
            group = [tensors[index] for index in members]
            if kind is None:
                rows[members] = plain_counts(group)
            else:
                sizes = array("q", map(Tensor.numel, group))
                rows[members] = self._of_one_type(group, sizes, kind, subnormals)
        return rows


def _only_type(tensors: Sequence[Tensor]) -> int | None:
    """The one type of tensors that all lie on the CPU, as C has it; None if they differ."""
    dtypes = {*map(DTYPE, tensors)}
    return C_FORMATS.get(dtypes.pop()) if len(dtypes) == 1 and all(map(_ON_CPU, tensors)) else None
