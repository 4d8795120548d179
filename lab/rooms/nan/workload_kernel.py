"""The Triton kernel of the watch: NaN, infinities, subnormals and the largest magnitude of many tensors in one launch.

Numbers are read as integers: above the sign bit, an IEEE number's bits order like its magnitude, infinity is the exponent's
bits alone, what is greater is NaN, what is below the least normal number is zero or subnormal. So one kernel serves half,
bfloat16 and float, and no mode of the GPU can flush what it counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from lab.rooms.nan.workload_count import FORMATS, KINDS, plain_counts

BLOCK = 2048  # words that a program reads at a time
MOST_PARTS = 64  # programs that share a tensor


@triton.jit  # type: ignore[untyped-decorator]
def _look(words, largest, subnormal, MASK: tl.constexpr, NORMAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """What every number costs: its magnitude against the largest, and whether it is subnormal (0 wraps around)."""
    magnitude = words & MASK
    largest = tl.maximum(largest, magnitude)
    subnormal += ((magnitude - 1).to(tl.uint32, bitcast=True) < NORMAL - 1).to(tl.int32)
    return largest, subnormal


@triton.jit  # type: ignore[untyped-decorator]
def _look_at_words(words, largest, subnormal, PACKED: tl.constexpr, MASK: tl.constexpr, NORMAL: tl.constexpr):  # type: ignore[no-untyped-def]
    largest, subnormal = _look(words, largest, subnormal, MASK, NORMAL)
    if PACKED:  # two numbers a word
        largest, subnormal = _look(words >> 16, largest, subnormal, MASK, NORMAL)
    return largest, subnormal


@triton.jit  # type: ignore[untyped-decorator]
def _count_bad(  # type: ignore[no-untyped-def]
    words, keep, nan, posinf, neginf, finite, SIGN: tl.constexpr, MASK: tl.constexpr, INFINITY: tl.constexpr
):
    """Only for tensors that hold something bad."""
    magnitude = words & MASK
    infinite = keep & (magnitude == INFINITY)
    negative = (words & SIGN) != 0
    nan += (keep & (magnitude > INFINITY)).to(tl.int32)
    posinf += (infinite & ~negative).to(tl.int32)
    neginf += (infinite & negative).to(tl.int32)
    finite = tl.maximum(finite, tl.where(keep & (magnitude < INFINITY), magnitude, 0))
    return nan, posinf, neginf, finite


@triton.jit  # type: ignore[untyped-decorator]
def _count(  # type: ignore[no-untyped-def]
    pointers, sizes, found, SIGN: tl.constexpr, INFINITY: tl.constexpr, NORMAL: tl.constexpr, PACKED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """found[tensor] += (nan, posinf, neginf, subnormal), and absmax by its bits; grid (tensors, parts).

    `sizes` are in words of 32 bits, with two numbers each if PACKED. Everything is read once without a mask where a block
    is full, so that loads are wide; what is bad is counted by reading again.
    """
    MASK: tl.constexpr = 0x7FFF if PACKED else 0x7FFFFFFF
    tensor = tl.program_id(0)
    size = tl.load(sizes + tensor).to(tl.int32)
    stride = tl.num_programs(1) * BLOCK
    begin = tl.program_id(1) * BLOCK
    if begin < size:
        base = tl.multiple_of(tl.load(pointers + tensor), 16).to(tl.pointer_type(tl.int32))
        lane = tl.arange(0, BLOCK)
        largest = tl.zeros([BLOCK], tl.int32)
        subnormal = tl.zeros([BLOCK], tl.int32)
        full = (size // BLOCK) * BLOCK
        for offset in range(begin, full, stride):
            words = tl.load(base + offset + lane)
            largest, subnormal = _look_at_words(words, largest, subnormal, PACKED, MASK, NORMAL)
        if (full // BLOCK) % tl.num_programs(1) == tl.program_id(1):
            words = tl.load(base + full + lane, mask=full + lane < size, other=0)
            largest, subnormal = _look_at_words(words, largest, subnormal, PACKED, MASK, NORMAL)
        row = found + tensor * 5
        most = tl.max(largest, 0)
        subnormals = tl.sum(subnormal, 0)
        # Almost always zero: the mask keeps thousands of programs off the same address.
        tl.atomic_add(row + 3, subnormals, mask=subnormals > 0)
        if most < INFINITY:
            tl.atomic_max(row + 4, most)
        else:
            nan = tl.zeros([BLOCK], tl.int32)
            posinf = tl.zeros([BLOCK], tl.int32)
            neginf = tl.zeros([BLOCK], tl.int32)
            finite = tl.zeros([BLOCK], tl.int32)
            for offset in range(begin, size, stride):
                keep = offset + lane < size
                words = tl.load(base + offset + lane, mask=keep, other=0)
                nan, posinf, neginf, finite = _count_bad(
                    words, keep, nan, posinf, neginf, finite, SIGN, MASK, INFINITY
                )
                if PACKED:
                    nan, posinf, neginf, finite = _count_bad(
                        words >> 16, keep, nan, posinf, neginf, finite, SIGN, MASK, INFINITY
                    )
            nans, posinfs, neginfs = tl.sum(nan, 0), tl.sum(posinf, 0), tl.sum(neginf, 0)
            tl.atomic_add(row, nans, mask=nans > 0)
            tl.atomic_add(row + 1, posinfs, mask=posinfs > 0)
            tl.atomic_add(row + 2, neginfs, mask=neginfs > 0)
            tl.atomic_max(row + 4, tl.max(finite, 0))


class KernelCounter:
    """Rows as `plain_counts` gives them; what the kernel cannot read goes there.

    Forwards of one phase differ in nothing but addresses, so what else a call needs is kept for the next one.
    """

    def __init__(self) -> None:
        self._last = Layout([], [], [], [])

    def __call__(self, tensors: Sequence[Tensor]) -> np.ndarray:
        sizes, devices = [*map(Tensor.numel, tensors)], [*map(Tensor.get_device, tensors)]
        dtypes = [tensor.dtype for tensor in tensors]
        last = self._last
        if last.groups and (sizes, dtypes, devices) == (last.sizes, last.dtypes, last.devices):
            rows = _as_before(tensors, last)
            if rows is not None:
                return rows
        groups, rest, found = _by_type(tensors, sizes, dtypes, devices)
        rows = _gathered(len(tensors), groups, found)
        if rest:
            rows[rest] = plain_counts([tensors[at] for at in rest])
        self._last = Layout(sizes, dtypes, devices, [] if rest else groups)
        return rows


@dataclass(frozen=True)
class Group:
    """Tensors of one type on one device: which, their words of 32 bits (on that device), and the most of these."""

    dtype: torch.dtype
    members: list[int]
    words: Tensor
    most_words: int


@dataclass(frozen=True)
class Layout:
    """What equal forwards share; without groups where some tensor went another way."""

    sizes: list[int]
    dtypes: list[torch.dtype]
    devices: list[int]
    groups: list[Group]


def _as_before(tensors: Sequence[Tensor], last: Layout) -> np.ndarray | None:
    """The counts where only addresses are new; None where a tensor needs a copy or another way now."""
    if not all(map(Tensor.is_contiguous, tensors)):
        return None
    pointers = np.array([*map(Tensor.data_ptr, tensors)], dtype=np.int64)
    if (pointers & 15).any():
        return None
    found = [launch(pointers[group.members], group) for group in last.groups]
    return _gathered(len(tensors), last.groups, found)


def _by_type(
    tensors: Sequence[Tensor], sizes: list[int], dtypes: list[torch.dtype], devices: list[int]
) -> tuple[list[Group], list[int], list[Tensor]]:
    """(groups, tensors that go the plain way, counts of each group). All launches come before any wait."""
    places: dict[tuple[torch.dtype, int], list[int]] = {}
    for at, key in enumerate(zip(dtypes, devices, strict=True)):
        places.setdefault(key, []).append(at)
    groups, rest, found = [], [], []
    for (dtype, device), members in places.items():
        if dtype not in FORMATS or device < 0:
            rest += members
            continue
        table = _table([tensors[at] for at in members], [sizes[at] for at in members], dtype)
        rest += [at for at, use in zip(members, table.chosen, strict=True) if not use]
        if table.words:
            members = [at for at, use in zip(members, table.chosen, strict=True) if use]
            words = torch.tensor(table.words).to(tensors[members[0]].device)
            groups.append(Group(dtype, members, words, max(table.words)))
            found.append(launch(table.pointers, groups[-1]))
    return groups, rest, found


def _gathered(count: int, groups: list[Group], found: list[Tensor]) -> np.ndarray:
    rows = np.empty((count, len(KINDS)))
    for group, counts in zip(groups, found, strict=True):
        rows[group.members] = _decode(counts.cpu().numpy(), group.dtype)
    return rows


@dataclass(frozen=True)
class Table:
    """Which tensors the kernel can read, their words, their addresses, and what must live until it has run."""

    chosen: list[bool]
    words: list[int]
    pointers: np.ndarray
    held: list[Tensor]


def _table(tensors: list[Tensor], sizes: list[int], dtype: torch.dtype) -> Table:
    """The kernel reads words of 32 bits from addresses that 16 divides. Counting does not care for order, but gaps need a copy."""
    dense = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]
    pointers = [tensor.data_ptr() for tensor in dense]
    per_word = 1 if dtype is torch.float32 else 2
    chosen = [
        not pointer % 16 and not size % per_word and 0 < size < 2**31
        for pointer, size in zip(pointers, sizes, strict=True)
    ]
    words = [size // per_word for size, use in zip(sizes, chosen, strict=True) if use]
    kept = [pointer for pointer, use in zip(pointers, chosen, strict=True) if use]
    return Table(chosen, words, np.array(kept, dtype=np.int64), dense)


def launch(pointers: np.ndarray, group: Group) -> Tensor:
    """(tensors, 5) int32 on the group's device, not waited for."""
    device = group.words.device
    table = torch.from_numpy(pointers).to(device, non_blocking=True)
    found = torch.zeros((len(pointers), len(KINDS)), dtype=torch.int32, device=device)
    parts = min(MOST_PARTS, triton.cdiv(group.most_words, 4 * BLOCK))
    whole, infinity, normal = FORMATS[group.dtype]
    packed = whole is torch.int16
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        _count[(len(pointers), parts)](table, group.words, found, 1 << 15 if packed else -(1 << 31),
                                       infinity, normal, packed, BLOCK)  # fmt: skip
    return found


def _decode(found: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """int32 rows -> float64 rows; the last column's bits become the number they spell."""
    rows = found.astype(np.float64)
    bits = torch.from_numpy(found[:, 4].copy())
    rows[:, 4] = bits.to(FORMATS[dtype][0]).view(dtype).double().numpy()
    return rows
