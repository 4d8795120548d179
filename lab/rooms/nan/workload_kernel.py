"""The Triton kernel of the watch: NaN, infinities, subnormals and the largest magnitude of many tensors in one launch.

Numbers are read as integers: above the sign bit, an IEEE number's bits order like its magnitude, infinity is the exponent's
bits alone, what is greater is NaN, what is below the least normal number is zero or subnormal. So one kernel serves half,
bfloat16 and float, and no mode of the GPU can flush what it counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

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


def kernel_counts(tensors: Sequence[Tensor]) -> np.ndarray:
    """Rows as `plain_counts` gives them; what the kernel cannot read goes there."""
    rows = np.empty((len(tensors), len(KINDS)))
    sizes = [tensor.numel() for tensor in tensors]
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for at, key in enumerate([(tensor.dtype, tensor.device) for tensor in tensors]):
        groups.setdefault(key, []).append(at)
    rest: list[int] = []
    # All launches first, then the waits.
    launched: list[tuple[torch.dtype, list[int], Tensor]] = []
    for (dtype, device), members in groups.items():
        if dtype not in FORMATS or device.type != "cuda":
            rest += members
            continue
        chosen, words, pointers, held = _table(
            [tensors[at] for at in members], [sizes[at] for at in members], dtype
        )
        rest += [at for at, use in zip(members, chosen, strict=True) if not use]
        if words:
            members = [at for at, use in zip(members, chosen, strict=True) if use]
            launched.append((dtype, members, launch(pointers, words, dtype, device, held)))
    for dtype, members, found in launched:
        rows[members] = _decode(found.cpu().numpy(), dtype)
    if rest:
        rows[rest] = plain_counts([tensors[at] for at in rest])
    return rows


def _table(
    tensors: list[Tensor], sizes: list[int], dtype: torch.dtype
) -> tuple[list[bool], list[int], list[int], list[Tensor]]:
    """(which the kernel can read, their words, their addresses, what must live until it has run).

    It reads words of 32 bits from addresses that 16 divides. Counting does not care for order, but gaps need a copy.
    """
    dense = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]
    pointers = [tensor.data_ptr() for tensor in dense]
    per_word = 1 if dtype is torch.float32 else 2
    chosen = [
        not pointer % 16 and not size % per_word and 0 < size < 2**31
        for pointer, size in zip(pointers, sizes, strict=True)
    ]
    if all(chosen):
        return chosen, [size // per_word for size in sizes], pointers, dense
    words = [size // per_word for size, use in zip(sizes, chosen, strict=True) if use]
    return chosen, words, [pointer for pointer, use in zip(pointers, chosen, strict=True) if use], dense


def launch(
    pointers: list[int], words: list[int], dtype: torch.dtype, device: torch.device, _held: list[Tensor]
) -> Tensor:
    """(tensors, 5) int32 on the device, not waited for; the copies in `_held` are freed in the stream's order."""
    table = torch.from_numpy(np.array([pointers, words], dtype=np.int64)).to(device, non_blocking=True)
    found = torch.zeros((len(words), len(KINDS)), dtype=torch.int32, device=device)
    parts = min(MOST_PARTS, triton.cdiv(max(words), 4 * BLOCK))
    whole, infinity, normal = FORMATS[dtype]
    packed = whole is torch.int16
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        _count[(len(words), parts)](table[0], table[1], found, 1 << 15 if packed else -(1 << 31),
                                    infinity, normal, packed, BLOCK)  # fmt: skip
    return found


def _decode(found: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """int32 rows -> float64 rows; the last column's bits become the number they spell."""
    rows = found.astype(np.float64)
    bits = torch.from_numpy(found[:, 4].copy())
    rows[:, 4] = bits.to(FORMATS[dtype][0]).view(dtype).double().numpy()
    return rows
