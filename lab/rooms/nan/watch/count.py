"""Counts of NaN, infinities and subnormals of many tensors, with one wait for the GPU.

Four ways that agree wherever they count:

- `plain_counts`: torch's own predicates, tensor by tensor. Slow and obvious; every other way is tested
  against it, and it serves CPUs without a C compiler.
- `norm_counts`: one infinity norm over the whole list says whether anything is bad; only then exact counts.
- `NativeCounts`: all tensors of a dtype read as integers, in C. For CPUs.
- the Triton kernel (`kernel`): exact counts of all tensors in one launch per dtype.

None of them leaves a trace on what it counts: `Tensor.numpy` would, because torch then refuses to resize the
tensor's memory, which FSDP and offloading do. Memory that was freed before the count is refused, not read.

Every function returns float64 rows (nan, posinf, neginf, subnormal, absmax), one per tensor; absmax is the
largest finite magnitude, -1 in a column means that it was not counted.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

KINDS = ("nan", "posinf", "neginf", "subnormal", "absmax")
# dtype -> (integer of the same width, bits of infinity, bits of the least normal number). Above the sign bit,
# an IEEE number's bits order like its magnitude: infinity is the exponent alone, what is greater is NaN.
FORMATS = {
    torch.float16: (torch.int16, 0x7C00, 0x0400),
    torch.bfloat16: (torch.int16, 0x7F80, 0x0080),
    torch.float32: (torch.int32, 0x7F800000, 0x00800000),
}
DTYPE = attrgetter("dtype")
CLEAN = (0.0, 0.0, 0.0, -1.0, -1.0)
MOST_CLEAN_ROWS = 1024
_CLEAN_ROWS: dict[int, np.ndarray] = {}
LOW = 1 << 40  # no memory of a usual process lies lower; what was freed lies at its offset from 0
Counter = Callable[[Sequence[Tensor]], np.ndarray]


def refuse_freed(tensors: Sequence[Tensor]) -> None:
    """Raise ValueError if memory of any was freed by its program (`storage.resize_(0)`)."""
    if tensors and min(map(Tensor.data_ptr, tensors)) < LOW and any(map(_is_freed, tensors)):
        raise ValueError("memory was freed before it could be counted")


def _is_freed(tensor: Tensor) -> bool:
    if not tensor.numel() or tensor.data_ptr() >= LOW or tensor.device.type == "meta":
        return False
    untyped = getattr(tensor, "untyped_storage", None)
    held: int = (untyped if untyped is not None else tensor.storage)().nbytes()
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return held < (tensor.storage_offset() + sum(steps) + 1) * tensor.element_size()


class Counted:
    """The counts of a list of tensors, which a GPU may still be busy with."""

    by_gpu = False

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows

    def rows(self) -> np.ndarray:
        """(tensors, kinds), after the wait if there is one."""
        return self._rows

    def bad(self) -> bool:
        """Whether anything is NaN or infinite, after the wait if there is one."""
        return bool((self.rows()[:, :3] > 0).any())

    def known_clean(self) -> bool:
        """Whether it is known without a wait that all are clean, and no magnitudes are."""
        return type(self) is Counted and all_clean(self._rows)


def beginning(counter: Counter) -> Callable[[Sequence[Tensor]], Counted]:
    """The counter as a function that does not have to wait.

    Its tensors may be let go: what it launched comes before their memory is reused.
    """
    begin: Callable[[Sequence[Tensor]], Counted] | None = getattr(counter, "begin", None)
    return begin or (lambda tensors: Counted(counter(tensors)))


def reads_only(counter: Counter) -> bool:
    """Whether it reads memory where it lies, by no operator of torch's."""
    return bool(getattr(counter, "reads_only", False))


def plain_counts(tensors: Sequence[Tensor]) -> np.ndarray:
    """Exact counts by torch's own predicates; one wait for the GPU at the end."""
    if not tensors:
        return np.zeros((0, len(KINDS)))
    refuse_freed(tensors)
    with torch.no_grad():
        return _gather([_plain_row(tensor.detach()) for tensor in tensors])


def clean_rows(count: int) -> np.ndarray:
    """The rows of so many clean tensors whose magnitudes are not known: shared, so not to be written to."""
    rows = _CLEAN_ROWS.get(count)
    if rows is None:
        rows = np.tile(CLEAN, (count, 1))
        rows.flags.writeable = False
        if len(_CLEAN_ROWS) < MOST_CLEAN_ROWS:
            _CLEAN_ROWS[count] = rows
    return rows


def all_clean(rows: np.ndarray) -> bool:
    """Whether these are `clean_rows`: nothing is bad, nothing unknown, and nothing else is known."""
    return _CLEAN_ROWS.get(len(rows)) is rows


def norm_counts(tensors: Sequence[Tensor]) -> np.ndarray:
    """One infinity norm over all tensors; exact counts only of those that are not finite.

    Clean tensors have 0, 0, 0, -1 (subnormals are not counted) and their largest magnitude.
    """
    refuse_freed(tensors)
    rows = np.full((len(tensors), len(KINDS)), -1.0)
    usable = [index for index, tensor in enumerate(tensors) if tensor.numel() and tensor.dtype in NORMED]
    with torch.no_grad():
        norms = _gather(_norms([tensors[at].detach() for at in usable])) if usable else np.zeros(0)
    rows[usable, :3], rows[usable, 4] = 0, norms
    remaining = sorted({*range(len(tensors))} - {*usable})
    exact = [at for at, norm in zip(usable, norms, strict=True) if not np.isfinite(norm)] + remaining
    if exact:
        rows[exact] = plain_counts([tensors[at] for at in exact])
    return rows


NORMED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _norms(tensors: list[Tensor]) -> list[Tensor]:
    """The largest |x| of each tensor, NaN if any number is NaN. One call over the list where torch has it."""
    together = getattr(torch, "_foreach_norm", None)
    if together is None or len({tensor.device for tensor in tensors}) > 1:
        return [torch.linalg.vector_norm(tensor, float("inf")) for tensor in tensors]
    norms: list[Tensor] = list(together(tensors, float("inf")))
    return norms


def _plain_row(tensor: Tensor) -> Tensor:
    """(5,) float64 on the tensor's device."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.element_size() == 1:  # float8 lacks most operators
        tensor = tensor.float()
    if not tensor.numel() or not tensor.is_floating_point():  # integers hold nothing bad
        return torch.zeros(len(KINDS), dtype=torch.float64, device=tensor.device)
    magnitude = tensor.abs()
    finite = torch.isfinite(tensor)
    tiny = torch.finfo(tensor.dtype).tiny
    zero = torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    flags = (
        torch.isnan(tensor),
        tensor == float("inf"),
        tensor == float("-inf"),
        (magnitude < tiny) & (magnitude > 0),
    )
    counts = [flag.sum().double() for flag in flags]
    return torch.stack([*counts, torch.where(finite, magnitude, zero).max().double()])


def _gather(rows: list[Tensor]) -> np.ndarray:
    """Rows that may lie on several devices, as one array; the only wait."""
    devices = {row.device for row in rows}
    if len(devices) == 1:
        return torch.stack([row.double() for row in rows]).cpu().numpy()
    return np.stack([row.double().cpu().numpy() for row in rows])


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
        kind, sizes = _only_type(tensors)
        if kind is not None and not self._call(tensors, sizes, kind, False, None):
            return clean_rows(len(tensors))
        rows = self._rows(tensors, subnormals=False)
        return rows if (rows[:, :3] > 0).any() else clean_rows(len(tensors))

    def _rows(self, tensors: Sequence[Tensor], *, subnormals: bool) -> np.ndarray:
        kind, sizes = _only_type(tensors)
        if kind is None:
            return self._of_several(tensors, subnormals)
        return self._of_one_type(tensors, sizes, kind, subnormals)

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


def _only_type(tensors: Sequence[Tensor]) -> tuple[int | None, array[int]]:
    """(the one type of tensors that all lie on the CPU, as C has it; how many numbers each has).

    None if they differ, or if one has no number.
    """
    dtypes, sizes = {*map(DTYPE, tensors)}, array("q", map(Tensor.numel, tensors))
    is_one = len(dtypes) == 1 and min(sizes) and all(map(_ON_CPU, tensors))
    return C_FORMATS.get(dtypes.pop()) if is_one else None, sizes
