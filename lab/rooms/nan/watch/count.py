"""Counts of NaN, infinities and subnormals of many tensors, with one wait for the GPU.

Four ways that agree wherever they count:

- `plain_counts`: torch's own predicates, tensor by tensor. Slow and obvious; every other way is tested
  against it.
- `norm_counts`: one infinity norm over the whole list says whether anything is bad; only then exact counts.
- `bits_counts`: all tensors of a dtype in one array, read as integers. For CPUs, where each operator costs.
- the Triton kernel (`kernel_counter`): exact counts of all tensors in one launch per dtype.

Every function returns float64 rows (nan, posinf, neginf, subnormal, absmax), one per tensor; absmax is the
largest finite magnitude, -1 in a column means that it was not counted.
"""

from __future__ import annotations

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
MOST_AT_ONCE = 1 << 22  # numbers that `bits_counts` copies together
Counter = Callable[[Sequence[Tensor]], np.ndarray]


class Counted:
    """The counts of a list of tensors, which a GPU may still be busy with."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows

    def rows(self) -> np.ndarray:
        """(tensors, kinds), after the wait if there is one."""
        return self._rows


def beginning(counter: Counter) -> Callable[[Sequence[Tensor]], Counted]:
    """The counter as a function that does not have to wait.

    Its tensors may be let go: what it launched comes before their memory is reused.
    """
    begin: Callable[[Sequence[Tensor]], Counted] | None = getattr(counter, "begin", None)
    return begin or (lambda tensors: Counted(counter(tensors)))


def plain_counts(tensors: Sequence[Tensor]) -> np.ndarray:
    """Exact counts by torch's own predicates; one wait for the GPU at the end."""
    if not tensors:
        return np.zeros((0, len(KINDS)))
    with torch.no_grad():
        return _gather([_plain_row(tensor.detach()) for tensor in tensors])


def bits_counts(tensors: Sequence[Tensor]) -> np.ndarray:
    """Exact counts by the numbers' bits, many small tensors at a time; other formats go to `plain_counts`."""
    rows = np.empty((len(tensors), len(KINDS)))
    sizes, dtypes = [*map(Tensor.numel, tensors)], [*map(DTYPE, tensors)]
    if all(sizes) and len({*dtypes}) == 1 and dtypes[0] in FORMATS and sum(sizes) < MOST_AT_ONCE:
        return _by_bits(list(tensors), dtypes[0])
    rest = []
    pieces: dict[torch.dtype, list[int]] = {dtype: [] for dtype in FORMATS}
    held = dict.fromkeys(FORMATS, 0)
    for at, (size, dtype) in enumerate(zip(sizes, dtypes, strict=True)):
        if not size or dtype not in FORMATS:
            rest.append(at)
            continue
        if pieces[dtype] and held[dtype] + size > MOST_AT_ONCE:
            rows[pieces[dtype]] = _by_bits([tensors[n] for n in pieces[dtype]], dtype)
            pieces[dtype], held[dtype] = [], 0
        pieces[dtype].append(at)
        held[dtype] += size
    for dtype, piece in pieces.items():
        if piece:
            rows[piece] = _by_bits([tensors[n] for n in piece], dtype)
    if rest:
        rows[rest] = plain_counts([tensors[at] for at in rest])
    return rows


def _by_bits(tensors: list[Tensor], dtype: torch.dtype) -> np.ndarray:
    """Rows of tensors of one dtype, none of them empty."""
    whole, infinity, normal = FORMATS[dtype]
    flat = _flat(tensors).view(whole).cpu().numpy()
    magnitude = flat & np.iinfo(flat.dtype).max
    sizes = np.fromiter(map(Tensor.numel, tensors), np.int64, len(tensors))
    begins = np.cumsum(sizes) - sizes
    largest = np.maximum.reduceat(magnitude, begins)
    rows = np.zeros((len(tensors), len(KINDS)))
    # Zero becomes the largest unsigned number, so one comparison finds what is above zero and below normal.
    tiny = (magnitude - 1).view(UNSIGNED[flat.itemsize]) < normal - 1
    if tiny.any():
        rows[:, 3] = np.add.reduceat(tiny, begins, dtype=np.int64)
    for at in np.flatnonzero(largest >= infinity):
        piece = slice(begins[at], begins[at] + sizes[at])
        signed, bits = flat[piece], magnitude[piece]
        rows[at, :3] = (bits > infinity).sum(), (signed == infinity).sum(), (signed == infinity + LEAST[whole]).sum()
        largest[at] = np.where(bits < infinity, bits, 0).max()
    rows[:, 4] = torch.from_numpy(largest).view(dtype).double().numpy()
    return rows


UNSIGNED = {2: np.uint16, 4: np.uint32}
LEAST = {torch.int16: -(1 << 15), torch.int32: -(1 << 31)}  # the sign bit alone


def _flat(tensors: list[Tensor]) -> Tensor:
    """All numbers in one array; without a copy if there is one tensor."""
    with torch.no_grad():
        if len(tensors) == 1:
            return tensors[0].detach().reshape(-1)
        return torch._C._nn.flatten_dense_tensors(tensors)


def norm_counts(tensors: Sequence[Tensor]) -> np.ndarray:
    """One infinity norm over all tensors; exact counts only of those that are not finite.

    Clean tensors have 0, 0, 0, -1 (subnormals are not counted) and their largest magnitude.
    """
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
