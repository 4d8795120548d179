"""The Triton kernel of the checksums: many tensors in one launch, each byte read once.

The sums are integers, so the atomic additions give the same in any order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # words of 64 bits that a program reads at a time
MOST_PARTS = 256  # programs that share a tensor, where there are many
PROGRAMS = 4096  # of a launch, where tensors are few and large


@triton.jit
def _mix(z):  # type: ignore[no-untyped-def]
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit  # type: ignore[untyped-decorator]
def _sum(pointers, sizes, sums, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """sums[tensor] += checksum; grid (tensors, parts); sizes in bytes, pointers on whole words.

    A program adds up each parts-th block, from its own part on.
    """
    tensor = tl.program_id(0)
    data = tl.multiple_of(tl.load(pointers + tensor).to(tl.pointer_type(tl.uint64)), 16)
    size = tl.load(sizes + tensor)
    part, parts = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    words = size // 8
    lane = tl.arange(0, BLOCK)
    key = tl.full([BLOCK], 0x1E3779B97F4A7C15, tl.uint64)
    total = tl.zeros([BLOCK], tl.uint64)
    full = (words // BLOCK) * BLOCK
    for offset in range(part * BLOCK, full, parts * BLOCK):
        place = (offset + lane).to(tl.uint64)
        total += _mix(tl.load(data + offset + lane) ^ (place * key))
    if (full // BLOCK) % parts == part:
        keep = full + lane < words
        place = (full + lane).to(tl.uint64)
        mixed = _mix(tl.load(data + full + lane, mask=keep, other=0) ^ (place * key))
        total += tl.where(keep, mixed, tl.zeros([BLOCK], tl.uint64))
        # The last bytes, fewer than a word, in the first lanes: their sum is the padded word.
        byte = data.to(tl.pointer_type(tl.uint8), bitcast=True) + words * 8 + lane
        tail = tl.load(byte, mask=(lane < 8) & (words * 8 + lane < size), other=0).to(tl.uint64)
        word = tl.sum(tl.where(lane < 8, tail << ((lane % 8) * 8).to(tl.uint64), 0), 0)
        padded = _mix(tl.full([BLOCK], 0, tl.uint64) + word ^ (words.to(tl.uint64) * key))
        total += tl.where((lane == 0) & (words * 8 < size), padded, tl.zeros([BLOCK], tl.uint64))
    tl.atomic_add(sums + tensor, tl.sum(total, 0).to(tl.int64, bitcast=True))


def launch(tensors: Sequence[Tensor], sums: Tensor) -> None:
    """Add the checksums of dense tensors to `sums`, int64 zeros of shape (len(tensors),)."""
    # Words are read two at a time: a view that begins between them is copied first.
    held = [tensor if tensor.data_ptr() % 16 == 0 else tensor.clone() for tensor in tensors]
    sizes = [one.numel() * one.element_size() for one in held]
    parts = parts_for(max(sizes, default=0), len(held))
    table = torch.tensor([[one.data_ptr() for one in held], sizes], dtype=torch.int64)
    on_gpu = table.pin_memory().to(sums.device, non_blocking=True) if sums.is_cuda else table
    _sum[(len(held), parts)](on_gpu[0], on_gpu[1], sums, BLOCK)


def parts_for(most_bytes: int, tensors: int) -> int:
    """How many programs share each of so many tensors of at most so many bytes."""
    return max(1, min(max(MOST_PARTS, PROGRAMS // max(tensors, 1)), -(-most_bytes // (8 * 4 * BLOCK))))
