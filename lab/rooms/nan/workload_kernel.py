"""The Triton kernel of the watch: NaN, infinities, subnormals and the largest magnitude of many tensors in one launch.

Numbers are read as integers: above the sign bit, an IEEE number's bits order like its magnitude, infinity is the exponent's
bits alone, what is greater is NaN, what is below the least normal number is zero or subnormal. So one kernel serves half,
bfloat16 and float, and no mode of the GPU can flush what it counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from lab.rooms.nan.workload_count import FORMATS, KINDS, plain_counts

BLOCK = 2048
MOST_PARTS = 64  # programs that share a tensor


@triton.jit  # type: ignore[untyped-decorator]
def _count(  # type: ignore[no-untyped-def]
    pointers, sizes, found, INFINITY: tl.constexpr, NORMAL: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """found[tensor] += (nan, posinf, neginf, subnormal), and absmax by its bits; grid (tensors, parts)."""
    tensor = tl.program_id(0)
    size = tl.load(sizes + tensor)
    stride = tl.num_programs(1) * BLOCK
    begin = tl.program_id(1) * BLOCK
    if begin < size:
        address = tl.load(pointers + tensor)
        if WIDE:
            base = address.to(tl.pointer_type(tl.int32))
        else:
            base = address.to(tl.pointer_type(tl.int16))
        nan = tl.zeros([BLOCK], tl.int32)
        posinf = tl.zeros([BLOCK], tl.int32)
        neginf = tl.zeros([BLOCK], tl.int32)
        subnormal = tl.zeros([BLOCK], tl.int32)
        largest = tl.zeros([BLOCK], tl.int32)
        for offset in range(begin, size, stride):
            at = offset + tl.arange(0, BLOCK)
            bits = tl.load(base + at, mask=at < size, other=0).to(tl.int32)
            if WIDE:
                magnitude = bits & 0x7FFFFFFF
            else:
                magnitude = bits & 0x7FFF
            infinite = magnitude == INFINITY
            nan += (magnitude > INFINITY).to(tl.int32)
            posinf += (infinite & (bits >= 0)).to(tl.int32)
            neginf += (infinite & (bits < 0)).to(tl.int32)
            subnormal += ((magnitude > 0) & (magnitude < NORMAL)).to(tl.int32)
            largest = tl.maximum(largest, tl.where(magnitude < INFINITY, magnitude, 0))
        row = found + tensor * 5
        nans, posinfs, neginfs = tl.sum(nan, 0), tl.sum(posinf, 0), tl.sum(neginf, 0)
        subnormals = tl.sum(subnormal, 0)
        # Almost always zero: the mask keeps thousands of programs off the same address.
        tl.atomic_add(row, nans, mask=nans > 0)
        tl.atomic_add(row + 1, posinfs, mask=posinfs > 0)
        tl.atomic_add(row + 2, neginfs, mask=neginfs > 0)
        tl.atomic_add(row + 3, subnormals, mask=subnormals > 0)
        tl.atomic_max(row + 4, tl.max(largest, 0))


def kernel_counts(tensors: Sequence[Tensor]) -> np.ndarray:
    """Rows as `plain_counts` gives them; what the kernel cannot read goes there."""
    rows = np.empty((len(tensors), len(KINDS)))
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for at, key in enumerate([(tensor.dtype, tensor.device) for tensor in tensors]):
        groups.setdefault(key, []).append(at)
    rest: list[int] = []
    for key in [*groups]:
        fits = key[0] in FORMATS and key[1].type == "cuda"
        good = [at for at in groups[key] if fits and 0 < tensors[at].numel() < 2**31]
        rest += sorted({*groups[key]} - {*good})
        groups[key] = good
    groups = {key: members for key, members in groups.items() if members}
    # All launches first, then the waits.
    launched = [(key[0], members, _launch([tensors[at] for at in members], *key)) for key, members in groups.items()]  # fmt: skip
    for dtype, members, found in launched:
        rows[members] = _decode(found.cpu().numpy(), dtype)
    if rest:
        rows[rest] = plain_counts([tensors[at] for at in rest])
    return rows


def _launch(tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """(tensors, 5) int32 on the device, not waited for."""
    # Counting does not care for order, so any dense layout is read as it lies; only gaps need a copy.
    dense = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]
    sizes = [tensor.numel() for tensor in dense]
    table = torch.tensor([[tensor.data_ptr() for tensor in dense], sizes], dtype=torch.int64)
    table = table.to(device, non_blocking=True)
    found = torch.zeros((len(dense), len(KINDS)), dtype=torch.int32, device=device)
    parts = min(MOST_PARTS, triton.cdiv(max(sizes), 4 * BLOCK))
    _, infinity, normal = FORMATS[dtype]
    with torch.cuda.device(device):
        _count[(len(dense), parts)](table[0], table[1].to(torch.int32), found, infinity, normal,
                                    dtype is torch.float32, BLOCK)  # fmt: skip
    return found


def _decode(found: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """int32 rows -> float64 rows; the last column's bits become the number they spell."""
    rows = found.astype(np.float64)
    bits = torch.from_numpy(found[:, 4].copy())
    rows[:, 4] = bits.to(FORMATS[dtype][0]).view(dtype).double().numpy()
    return rows
