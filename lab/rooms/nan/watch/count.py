"""Counts of NaN, infinities and subnormals of many tensors, with one wait for the GPU.

Five ways that agree wherever they count:

- `plain_counts`: torch's own predicates, tensor by tensor. Slow and obvious; every other way is tested
  against it.
- `norm_counts`: one infinity norm over the whole list says whether anything is bad; only then exact counts.
- `bits_counts`: all tensors of a dtype in one array, read as integers. For CPUs, where each operator costs.
- `screen_counts`: dot products of tensors with themselves; only then exact counts. For CPUs, in steps in
  which nobody asks for magnitudes.
- the Triton kernel (`kernel_counter`): exact counts of all tensors in one launch per dtype.

None of them leaves a trace on what it counts: `Tensor.numpy` would, because torch then refuses to resize the
tensor's memory, which FSDP and offloading do. Memory that was freed before the count is refused, not read.

Every function returns float64 rows (nan, posinf, neginf, subnormal, absmax), one per tensor; absmax is the
largest finite magnitude, -1 in a column means that it was not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
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
DTYPE, _DEVICE = attrgetter("dtype"), attrgetter("device")
_CPU = {torch.device("cpu")}
LARGEST = {2: np.int16(0x7FFF), 4: np.int32(0x7FFFFFFF)}
SIGNED = {torch.int16: "<i2", torch.int32: "<i4"}
UNSIGNED = {2: np.uint16, 4: np.uint32}
PIECE = 1 << 15  # numbers that `bits_counts` looks at together
CLEAN = (0.0, 0.0, 0.0, -1.0, -1.0)
DOTTED = {torch.float32: "<f4", torch.float64: "<f8"}
TOGETHER = 64  # small tensors that share one product
MOST_CLEAN_ROWS = 1024
_CLEAN_ROWS: dict[int, np.ndarray] = {}
LARGE = 1 << 13  # from this size on a tensor is not copied beside others
LOW = 1 << 40  # no memory of a usual process lies lower; what was freed lies at its offset from 0
Counter = Callable[[Sequence[Tensor]], np.ndarray]


class _Memory:
    """What numpy needs to read the memory of a dense tensor on a CPU, which it keeps alive."""

    def __init__(self, tensor: Tensor, kind: str) -> None:
        self._held = tensor
        place = (tensor.data_ptr(), True)
        self.__array_interface__ = {
            "version": 3,
            "typestr": kind,
            "shape": (tensor.numel(),),
            "data": place,
        }


def as_array(tensor: Tensor, kind: str) -> np.ndarray:
    """(numbers,) of numpy's type `kind`, read only: the tensor's own memory if it is contiguous."""
    return np.asarray(_Memory(tensor.contiguous(), kind))


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
    # Shapes and types of the tensors, all of FORMATS, where the counter has them of an equal list.
    shapes: Sequence[tuple[torch.Size, torch.dtype]] | None = None

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
        return type(self) is Counted and _CLEAN_ROWS.get(len(self._rows)) is self._rows


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


def bits_counts(tensors: Sequence[Tensor], *, subnormals: bool = True) -> np.ndarray:
    """Exact counts by the numbers' bits; formats other than half, bfloat16 and float go to `plain_counts`.

    Without `subnormals` these are not counted (-1), which is half of the price.

    Small tensors are counted together, large ones piece by piece where they lie, so that all intermediate
    arrays stay in the processor's cache.
    """
    refuse_freed(tensors)
    sizes = [*map(Tensor.numel, tensors)]
    if sizes and min(sizes) > 0 and sum(sizes) <= PIECE and max(sizes) < LARGE:
        dtypes = {*map(DTYPE, tensors)}
        if len(dtypes) == 1 and dtypes <= FORMATS.keys():
            return _all_small(tensors, dtypes.pop(), subnormals)
    rows = np.empty((len(tensors), len(KINDS)))
    peaks = np.zeros(len(tensors), np.int64)  # bits of the largest finite magnitude
    together: dict[torch.dtype, list[int]] = {dtype: [] for dtype in FORMATS}
    held = dict.fromkeys(FORMATS, 0)
    rest = []
    with torch.no_grad():
        for at, (size, dtype) in enumerate(zip(sizes, map(DTYPE, tensors), strict=True)):
            if not size or dtype not in FORMATS:
                rest.append(at)
            elif size >= LARGE:
                rows[at, :4], peaks[at] = _large(tensors[at], dtype, subnormals)
            else:
                if held[dtype] + size > PIECE:
                    members = together[dtype]
                    rows[members, :4], peaks[members] = _small(
                        [tensors[n] for n in members], dtype, subnormals
                    )
                    together[dtype], held[dtype] = [], 0
                together[dtype].append(at)
                held[dtype] += size
        for dtype, members in together.items():
            if members:
                rows[members, :4], peaks[members] = _small([tensors[n] for n in members], dtype, subnormals)
    for dtype in {*map(DTYPE, tensors)} & {*FORMATS}:
        members = [at for at, tensor in enumerate(tensors) if tensor.dtype is dtype]
        rows[members, 4] = _values(peaks[members], dtype)
    if rest:
        rows[rest] = plain_counts([tensors[at] for at in rest])
    return rows


def _all_small(tensors: Sequence[Tensor], dtype: torch.dtype, subnormals: bool) -> np.ndarray:
    """`bits_counts` of a few small tensors of one dtype, none of them empty."""
    rows = np.empty((len(tensors), len(KINDS)))
    with torch.no_grad():
        rows[:, :4], peaks = _small([*tensors], dtype, subnormals)
    rows[:, 4] = _values(peaks.astype(np.int64), dtype)
    return rows


def _values(bits: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Numbers from their bits."""
    if dtype is torch.float16:
        return bits.astype(np.uint16).view(np.float16).astype(np.float64)
    shifted = bits << 16 if dtype is torch.bfloat16 else bits
    numbers = shifted.astype(np.uint32).view(np.float32).astype(np.float64)
    # Not by the processor, which takes subnormals for 0 where the program asked for that.
    return np.where(shifted < 1 << 23, shifted * 2.0**-149, numbers)


def _small(tensors: list[Tensor], dtype: torch.dtype, subnormals: bool) -> tuple[np.ndarray, np.ndarray]:
    """(counts, bits of the largest magnitude) of small tensors of one dtype, none of them empty."""
    whole, infinity, normal = FORMATS[dtype]
    flat = as_array(torch._C._nn.flatten_dense_tensors(tensors).resolve_neg().cpu(), SIGNED[whole])
    magnitude = flat & LARGEST[flat.itemsize]
    sizes = np.fromiter(map(Tensor.numel, tensors), np.int64, len(tensors))
    begins = np.cumsum(sizes) - sizes
    largest = np.maximum.reduceat(magnitude, begins)
    rows = np.zeros((len(tensors), 4))
    if not subnormals:
        rows[:, 3] = -1
    elif (tiny := _tiny(magnitude, normal)).any():
        rows[:, 3] = np.add.reduceat(tiny, begins, dtype=np.int64)
    for at in np.flatnonzero(largest >= infinity) if largest.max() >= infinity else ():
        piece = slice(begins[at], begins[at] + sizes[at])
        rows[at, :3], largest[at] = _bad(flat[piece], magnitude[piece], infinity)
    return rows, largest


def _large(tensor: Tensor, dtype: torch.dtype, subnormals: bool) -> tuple[np.ndarray, int]:
    """(counts, bits of the largest magnitude) of one tensor, piece by piece."""
    whole, infinity, normal = FORMATS[dtype]
    flat = as_array(tensor.detach().resolve_neg().cpu(), SIGNED[whole])
    row, largest = np.zeros(4), 0
    for begin in range(0, len(flat), PIECE):
        signed = flat[begin : begin + PIECE]
        magnitude = signed & LARGEST[flat.itemsize]
        peak = int(magnitude.max())
        row[3] += np.count_nonzero(_tiny(magnitude, normal)) if subnormals else 0
        if peak >= infinity:
            bad, peak = _bad(signed, magnitude, infinity)
            row[:3] += bad
        largest = max(largest, peak)
    if not subnormals:
        row[3] = -1
    return row, largest


def _tiny(magnitude: np.ndarray, normal: int) -> np.ndarray:
    """Which are subnormal. Zero becomes the largest unsigned number, so one comparison is enough."""
    found: np.ndarray = (magnitude - 1).view(UNSIGNED[magnitude.itemsize]) < normal - 1
    return found


def _bad(signed: np.ndarray, magnitude: np.ndarray, infinity: int) -> tuple[list[int], int]:
    """([NaN, +inf, -inf], the bits of the largest finite magnitude)"""
    infinite = magnitude == infinity
    plus = int(np.count_nonzero(infinite & (signed > 0)))
    counts = [int(np.count_nonzero(magnitude > infinity)), plus, int(np.count_nonzero(infinite)) - plus]
    return counts, int(np.where(magnitude < infinity, magnitude, 0).max())


def screen_counts(tensors: Sequence[Tensor]) -> np.ndarray:
    """Whether anything is bad, by dot products with themselves; exact counts only of those that look so.

    For CPUs: small tensors share one product, so that a clean list costs little beside the call. A clean
    tensor has 0, 0, 0, -1, -1: its magnitudes are not known. Squares that overflow look bad, so such tensors
    are counted exactly, too.
    """
    refuse_freed(tensors)
    with np.errstate(over="ignore", invalid="ignore"):
        if _all_finite(tensors):
            return clean_rows(len(tensors))
        rows = np.array(clean_rows(len(tensors)))
        known = (one.dtype in DOTTED and one.device in _CPU and isfinite(_dotted(one)) for one in tensors)
        rest = [at for at, finite in enumerate(known) if not finite]
    if rest:
        rows[rest] = bits_counts([tensors[at] for at in rest])
    return rows


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
    """Whether these are `clean_rows`: nothing is bad, nothing unknown, and there is no more to know."""
    return _CLEAN_ROWS.get(len(rows)) is rows


def _all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether all are surely finite; of a list of several kinds that is not asked here."""
    kinds = {*map(DTYPE, tensors)}
    if len(kinds) != 1 or not kinds <= DOTTED.keys() or {*map(_DEVICE, tensors)} != _CPU:
        return False
    sizes = [*map(Tensor.numel, tensors)]
    if max(sizes) <= LARGE and len(sizes) <= TOGETHER:
        return isfinite(_dotted(torch._C._nn.flatten_dense_tensors([*tensors])))
    small = [one for one, size in zip(tensors, sizes, strict=True) if size <= LARGE]
    for begin in range(0, len(small), TOGETHER):
        if not isfinite(_dotted(torch._C._nn.flatten_dense_tensors(small[begin : begin + TOGETHER]))):
            return False
    return all(isfinite(_dotted(one)) for one, size in zip(tensors, sizes, strict=True) if size > LARGE)


def _dotted(tensor: Tensor) -> float:
    """The product of a tensor with itself, in pieces: a library would spread a long one over threads."""
    flat = as_array(tensor.detach(), DOTTED[tensor.dtype])
    if flat.size <= LARGE:
        return float(flat.dot(flat))
    pieces = (flat[begin : begin + LARGE] for begin in range(0, flat.size, LARGE))
    return float(sum(piece.dot(piece) for piece in pieces))


def norm_counts(tensors: Sequence[Tensor]) -> np.ndarray:
    """One infinity norm over all tensors; exact counts only of those that are not finite.

    Clean tensors have 0, 0, 0, -1 (subnormals are not counted) and their largest magnitude.
    """
    refuse_freed(tensors)
    rows = np.full((len(tensors), len(KINDS)), -1.0)
    usable = [at for at, tensor in enumerate(tensors) if tensor.numel() and tensor.dtype in NORMED]
    with torch.no_grad():
        norms = _gather(_norms([tensors[at].detach() for at in usable])) if usable else np.zeros(0)
    rows[usable, :3], rows[usable, 4] = 0, norms
    rest = sorted({*range(len(tensors))} - {*usable})
    exact = [at for at, norm in zip(usable, norms, strict=True) if not np.isfinite(norm)] + rest
    if exact:
        rows[exact] = plain_counts([tensors[at] for at in exact])
    return rows


NORMED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _norms(tensors: list[Tensor]) -> list[Tensor]:
    """The largest |x| of each tensor, NaN if any number is NaN. One call over the list where torch has it."""
    together = getattr(torch, "_foreach_norm", None)
    if together is None or len({tensor.device for tensor in tensors}) > 1:
        return [torch.linalg.vector_norm(tensor, float("inf")) for tensor in tensors]
    found: list[Tensor] = list(together(tensors, float("inf")))
    return found


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
