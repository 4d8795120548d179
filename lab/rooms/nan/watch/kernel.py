"""The Triton kernel of the watch: counts of many tensors in one launch.

Numbers are read as integers: above the sign bit, an IEEE number's bits order like its magnitude. Infinity is
the exponent's bits alone, NaN is greater, and what is below the least normal number is zero or subnormal. So
one kernel serves half, bfloat16 and float, and no mode of the GPU can flush what it counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from lab.rooms.nan.watch.count import FORMATS

BLOCK = 2048  # words that a program reads at a time
MOST_PARTS = 64  # programs that share a tensor, where many tensors are counted
PROGRAMS = 4096  # of a launch, where tensors are few and large: they must fill a GPU too
_compiled: dict[tuple[Any, ...], Any] = {}


@triton.jit  # type: ignore[untyped-decorator]
def _look(words, largest, subnormal, MASK: tl.constexpr, NORMAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """The work for every number: the largest magnitude, and whether it is subnormal (0 wraps around)."""
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
    """The extra work for tensors that hold something bad."""
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
    pointers,
    sizes,
    found,
    SIGN: tl.constexpr,
    INFINITY: tl.constexpr,
    NORMAL: tl.constexpr,
    PACKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """found[tensor] += (nan, posinf, neginf, subnormal), and absmax by its bits; grid (tensors, parts).

    `sizes` are in words of 32 bits, with two numbers each if PACKED. Everything is read once without a mask
    where a block is full, so that loads are wide; what is bad is counted by reading again.
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


def parts_for(words: int, tensors: int) -> int:
    """How many programs share each of so many tensors of at most so many words of 32 bits."""
    return min(max(MOST_PARTS, PROGRAMS // max(tensors, 1)), -(-words // (4 * BLOCK)))


def run(grid: tuple[int, int], args: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    """`_count` over `grid` on the current device.

    What Triton works out at every launch is kept after the first one: that halves the price of a launch.
    """
    whole, infinity, normal = FORMATS[dtype]
    packed = whole is torch.int16
    constants = (1 << 15 if packed else -(1 << 31), infinity, normal, packed, BLOCK)
    key = (args[0].device, constants)
    known = _compiled.get(key)
    if known is not None:
        known[grid[0], grid[1], 1](*args, *constants)
        return
    compiled = _count[grid](*args, *constants)
    if compiled is not None:  # Triton's interpreter compiles nothing
        _compiled[key] = compiled


def decode(found: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """int32 rows -> float64 rows; the last column's bits become the number they encode."""
    rows = found.astype(np.float64)
    bits = found[:, 4].copy()
    if dtype is torch.float16:
        rows[:, 4] = bits.astype(np.int16).view(np.float16)
    else:  # bfloat16 is the upper half of a float
        rows[:, 4] = (bits << 16 if dtype is torch.bfloat16 else bits).view(np.float32)
    return rows
