"""The Triton kernel of the watch, and its counter: one launch per type, one wait at the end.

Numbers are read as integers: above the sign bit, an IEEE number's bits order like its magnitude. Infinity is
the exponent's bits alone, NaN is greater, and what is below the least normal number is zero or subnormal. So
one kernel serves half, bfloat16 and float, and no mode of the GPU can flush what it counts.

All tensors are cut into pieces of one size, with a program each: a GPU stays busy to the end, however much
sizes differ. Fast memory outruns a GPU's integer units, so two packed numbers are looked at together.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from lab.rooms.nan.watch.count import FORMATS, KINDS, LOW, Counted, plain_counts, refuse_freed

LANES = 512  # words of 32 bits that a program reads at a time: 16 bytes for each of its threads
BLOCK = 8 * LANES  # words between two looks at whether a piece goes on
MOST_BLOCKS = 8  # in a piece, of 128 KiB then; sums of 16 bits would hold more
LEAST_PIECES = 4096  # of a launch, as far as there are blocks: few tensors must fill a GPU too
_compiled: dict[tuple[Any, ...], Any] = {}


@triton.jit  # type: ignore[untyped-decorator]
def _look(words, largest, ordinary, NORMAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """The work for every word of one number: the largest magnitude, and how many are not subnormal."""
    magnitude = words & 0x7FFFFFFF
    below = (magnitude - 1).to(tl.uint32, bitcast=True)  # 0 becomes the largest number
    return tl.maximum(largest, magnitude), ordinary + (below >= NORMAL - 1).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _look_at_two(words, largest, ordinary, NORMAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same for two packed numbers: `ordinary` is two sums of 16 bits."""
    magnitude = words & 0x7FFF7FFF
    largest = tl.maximum(tl.maximum(largest, magnitude & 0x7FFF), magnitude >> 16)
    normal = magnitude + (0x8000 - NORMAL) * 0x10001  # the top bits say: not below the least normal number
    not_zero = magnitude + 0x7FFF7FFF
    return largest, ordinary + (((normal | ~not_zero) >> 15) & 0x10001)


@triton.jit  # type: ignore[untyped-decorator]
def _look_at_pair(words, largest, ordinary, NORMAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same by instructions for pairs, four in all; `largest` is a pair too."""
    magnitude = words & 0x7FFF7FFF
    largest = tl.inline_asm_elementwise(
        "max.u16x2 $0, $1, $2;", "=r,r,r", [largest, magnitude], dtype=tl.int32, is_pure=True, pack=1
    )
    # min(magnitude - 1, NORMAL - 1), where 0 wraps around, is NORMAL - 1 unless it is subnormal.
    bits = tl.inline_asm_elementwise(
        """{
        .reg .b32 one, zero, below;
        mov.b32 one, 0xFFFFFFFF;
        mov.b32 zero, 0;
        add.u16x2 below, $1, one;
        min.u16x2 below, below, $2;
        add.s16x2 below, below, $3;
        max.s16x2 $0, below, zero;
        }""",
        "=r,r,r,r",
        [magnitude, (NORMAL - 1) * 0x10001, (2 - NORMAL) * 0x10001 + 0x10000],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    return largest, ordinary + bits


@triton.jit  # type: ignore[untyped-decorator]
def _look_at_words(words, largest, ordinary, NORMAL: tl.constexpr, PACKED: tl.constexpr, PAIRS: tl.constexpr):  # type: ignore[no-untyped-def]
    if PAIRS:
        largest, ordinary = _look_at_pair(words, largest, ordinary, NORMAL)
    elif PACKED:
        largest, ordinary = _look_at_two(words, largest, ordinary, NORMAL)
    else:
        largest, ordinary = _look(words, largest, ordinary, NORMAL)
    return largest, ordinary


@triton.jit  # type: ignore[untyped-decorator]
def _add_bad(  # type: ignore[no-untyped-def]
    words, keep, nan, posinf, neginf, finite, SIGN: tl.constexpr, MASK: tl.constexpr, INFINITY: tl.constexpr
):
    magnitude = words & MASK
    infinite = keep & (magnitude == INFINITY)
    negative = (words & SIGN) != 0
    nan += (keep & (magnitude > INFINITY)).to(tl.int32)
    posinf += (infinite & ~negative).to(tl.int32)
    neginf += (infinite & negative).to(tl.int32)
    finite = tl.maximum(finite, tl.where(keep & (magnitude < INFINITY), magnitude, 0))
    return nan, posinf, neginf, finite


@triton.jit  # type: ignore[untyped-decorator]
def _count_bad(  # type: ignore[no-untyped-def]
    base, size, row, SIGN: tl.constexpr, INFINITY: tl.constexpr, PACKED: tl.constexpr, LANES: tl.constexpr
):
    """The extra work for a piece that holds something bad: it is read again."""
    MASK: tl.constexpr = 0x7FFF if PACKED else 0x7FFFFFFF
    lane = tl.arange(0, LANES)
    nan = tl.zeros([LANES], tl.int32)
    posinf = tl.zeros([LANES], tl.int32)
    neginf = tl.zeros([LANES], tl.int32)
    finite = tl.zeros([LANES], tl.int32)
    for offset in range(0, size, LANES):
        keep = offset + lane < size
        words = tl.load(base + offset + lane, mask=keep, other=0)
        nan, posinf, neginf, finite = _add_bad(words, keep, nan, posinf, neginf, finite, SIGN, MASK, INFINITY)
        if PACKED:
            words = words >> 16
            nan, posinf, neginf, finite = _add_bad(
                words, keep, nan, posinf, neginf, finite, SIGN, MASK, INFINITY
            )
    nans, posinfs, neginfs = tl.sum(nan, 0), tl.sum(posinf, 0), tl.sum(neginf, 0)
    tl.atomic_add(row, nans, mask=nans > 0)
    tl.atomic_add(row + 1, posinfs, mask=posinfs > 0)
    tl.atomic_add(row + 2, neginfs, mask=neginfs > 0)
    tl.atomic_max(row + 4, tl.max(finite, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _count(  # type: ignore[no-untyped-def]
    pointers, sizes, firsts, owners, total, piece, SIGN: tl.constexpr, INFINITY: tl.constexpr,
    NORMAL: tl.constexpr, PACKED: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """found[tensor] += (nan, posinf, neginf, subnormal), and absmax by its bits; a program per piece.

    A piece lies in the tensor that `owners` names, whose first one is `firsts[tensor]`. `piece` and `sizes`
    are in 32-bit words, with two numbers each if PACKED. Everything is read once without a mask where a
    block is full, so that loads are wide; what is bad is counted by reading again.
    """
    tensor = tl.load(owners + tl.program_id(0))
    begin = (tl.program_id(0) - tl.load(firsts + tensor)) * piece
    size = tl.minimum(tl.load(sizes + tensor).to(tl.int32) - begin, piece)
    base = tl.multiple_of(tl.load(pointers + tensor).to(tl.pointer_type(tl.int32)) + begin, 16)
    lane = tl.arange(0, LANES)
    largest = tl.zeros([LANES], tl.int32)
    ordinary = tl.zeros([LANES], tl.int32)
    full = (size // BLOCK) * BLOCK
    for offset in range(0, full, BLOCK):
        for part in tl.static_range(0, BLOCK, LANES):
            words = tl.load(base + offset + part + lane)
            largest, ordinary = _look_at_words(words, largest, ordinary, NORMAL, PACKED, PAIRS)
    looked_at = full
    for offset in range(full, size, LANES):
        words = tl.load(base + offset + lane, mask=offset + lane < size, other=0)
        largest, ordinary = _look_at_words(words, largest, ordinary, NORMAL, PACKED, PAIRS)
        looked_at += LANES
    if PAIRS:
        largest = tl.maximum(largest & 0x7FFF, largest >> 16)
    if PACKED:
        ordinary = (ordinary & 0xFFFF) + ((ordinary >> 16) & 0xFFFF)
        looked_at *= 2
    row = total + tensor * 5
    absmax = tl.max(largest, 0)
    subnormals = looked_at - tl.sum(ordinary, 0)
    # Almost always zero: the mask keeps thousands of programs off the same address.
    tl.atomic_add(row + 3, subnormals, mask=subnormals > 0)
    if absmax < INFINITY:
        tl.atomic_max(row + 4, absmax)
    else:
        _count_bad(base, size, row, SIGN, INFINITY, PACKED, LANES)


def piece_for(words: Sequence[int]) -> int:
    """The words of a piece, whole blocks, for tensors of so many words each."""
    blocks = -(-sum(words) // (LEAST_PIECES * BLOCK))
    return BLOCK * min(max(blocks, 1), MOST_BLOCKS)


def has_pairs(device: torch.device) -> bool:
    """Whether a GPU has instructions for pairs of 16 bits: NVIDIA's since Hopper."""
    if device.type != "cuda" or torch.version.hip or not hasattr(tl, "inline_asm_elementwise"):
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def run(
    pieces: int,
    tables: tuple[Tensor, ...],
    places: tuple[int, ...],
    piece: int,
    dtype: torch.dtype,
    *,
    pairs: bool,
) -> None:
    """`_count` with so many pieces of `piece` words on the current device; `places`: where the tables lie.

    What Triton works out at every launch is kept after the first one: that halves the price of a launch. It
    then takes addresses as numbers, and need not ask five tensors and the driver for them.
    """
    integer, infinity, normal = FORMATS[dtype]
    packed = integer is torch.int16
    sign = 1 << 15 if packed else -(1 << 31)
    constants = (sign, infinity, normal, packed, packed and pairs, BLOCK, LANES)
    key = (tables[0].device, constants)
    compiled_before = _compiled.get(key)
    if compiled_before is not None:
        compiled_before[pieces, 1, 1](*places, piece, *constants)
        return
    compiled = _count[(pieces,)](*tables, piece, *constants)
    if compiled is not None:  # Triton's interpreter compiles nothing
        _compiled[key] = compiled


def decode(counts: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """int32 rows -> float64 rows; the last column's bits become the number they encode."""
    rows = counts.astype(np.float64)
    bits = counts[:, 4].copy()
    if dtype is torch.float16:
        rows[:, 4] = bits.astype(np.int16).view(np.float16)
    else:  # bfloat16 is the upper half of a float
        rows[:, 4] = (bits << 16 if dtype is torch.bfloat16 else bits).view(np.float32)
    return rows


DTYPE = attrgetter("dtype")
MOST_LAYOUTS = 1024


class KernelCounter:
    """Rows as `plain_counts` gives them; tensors that the kernel cannot read are counted there.

    Equal forwards, and equal parts of a training step, differ only in addresses: how their tensors are cut
    into pieces is worked out once.
    """

    def __init__(self) -> None:
        self._layouts: OrderedDict[Any, tuple[list[Group], list[int]]] = OrderedDict()

    def __call__(self, tensors: Sequence[Tensor]) -> np.ndarray:
        return self.begin(tensors).rows()

    def begin(self, tensors: Sequence[Tensor]) -> Counted:
        """Launch all counts; wait only for tensors that the kernel cannot read."""
        # Counting does not care for order, but gaps need a copy, and so does the imaginary part of a
        # conjugate, which has other signs.
        if not all(map(Tensor.is_contiguous, tensors)) or any(map(Tensor.is_neg, tensors)):
            refuse_freed(tensors)
            tensors = [tensor.resolve_neg().contiguous() for tensor in tensors]
        pointers = np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))
        if pointers.min(initial=LOW) < LOW:
            refuse_freed(tensors)
        layout = (*map(Tensor.numel, tensors), *map(DTYPE, tensors), *map(Tensor.get_device, tensors))
        aligned = not np.bitwise_or.reduce(pointers, initial=0) & 15
        worked_out = self._layouts.get(layout) if aligned else None
        groups, remaining = worked_out or _groups(tensors, pointers)
        if worked_out is None and aligned:
            self._layouts[layout] = groups, remaining
            if len(self._layouts) > MOST_LAYOUTS:
                self._layouts.popitem(last=False)
        launches = [(group, *group.launch(pointers[group.members])) for group in groups]
        rest_rows = plain_counts([tensors[index] for index in remaining])
        return Launched(len(tensors), launches, remaining, rest_rows)


def _groups(tensors: Sequence[Tensor], pointers: np.ndarray) -> tuple[list[Group], list[int]]:
    """(what the kernel can read, by type and device; indices of the rest)

    It reads words of 32 bits from addresses that 16 divides.
    """
    members: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    remaining = list[int]()
    for index, (tensor, pointer) in enumerate(zip(tensors, pointers.tolist(), strict=True)):
        num_bytes = tensor.numel() * tensor.element_size()
        is_read = tensor.dtype in FORMATS and tensor.get_device() >= 0 and not pointer % 16
        if is_read and not num_bytes % 4 and 0 < tensor.numel() < 2**31:
            members.setdefault((tensor.dtype, tensor.device), []).append(index)
        else:
            remaining.append(index)
    return [
        Group(dtype, device, of, [tensors[n].numel() * tensors[n].element_size() // 4 for n in of])
        for (dtype, device), of in members.items()
    ], remaining


class Group:
    """Tensors of one type on one device: their indices, and how they are cut into pieces."""

    def __init__(
        self, dtype: torch.dtype, device: torch.device, members: Sequence[int], words: Sequence[int]
    ) -> None:
        """`words`: the size of each in 32-bit words."""
        self.dtype, self.device, self.members = dtype, device, np.asarray(members, np.int64)
        self.piece, self.pairs = piece_for(words), has_pairs(device)
        pieces = -(-np.asarray(words) // self.piece)
        self.pieces = int(pieces.sum())
        owners = np.repeat(np.arange(len(words)), pieces)
        columns = (np.asarray(words), np.cumsum(pieces) - pieces, owners)
        # Memory made in inference mode could not be used outside of it.
        with torch.inference_mode(False):
            self._tables = [torch.from_numpy(column.astype(np.int32)).to(device) for column in columns]
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # other streams read these, too

    def launch(self, pointers: np.ndarray) -> tuple[Tensor, Any]:
        """(counts of the tensors at these addresses, an event to wait for before they are there)

        Addresses and zeroed counts go up in one copy. The memory is new for each launch: torch's allocators
        know when the last copy that uses it is over.
        """
        on_gpu, count = self.device.type == "cuda", len(pointers)
        begin = count + count % 2  # the kernel takes every address for a multiple of 16
        size = begin + -(-count * len(KINDS) // 2)
        # Of the CPU, whatever the program's default device is.
        upload = torch.zeros(size, dtype=torch.int64, device="cpu", pin_memory=on_gpu)
        upload[:count] = torch.from_numpy(pointers)
        table = upload.to(self.device, non_blocking=True) if on_gpu else upload
        counts = table[begin:].view(torch.int32)[: count * len(KINDS)]
        tables = (table, *self._tables, counts)
        rows = torch.empty(count * len(KINDS), dtype=torch.int32, device="cpu", pin_memory=on_gpu)
        with _on(self.device):
            places = tuple(map(Tensor.data_ptr, tables))
            run(self.pieces, tables, places, self.piece, self.dtype, pairs=self.pairs)
            rows.copy_(counts, non_blocking=True)
            event: Any = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
            if event is not None:
                event.record()
        return rows, event


class Launched(Counted):
    """The counts of all groups on their way, and those of the rest."""

    by_gpu = True

    def __init__(
        self,
        count: int,
        launches: list[tuple[Group, Tensor, Any]],
        remaining: list[int],
        rest_rows: np.ndarray,
    ) -> None:
        self._count, self._launches, self._remaining, self._rest_rows = count, launches, remaining, rest_rows

    def _counts(self) -> Iterator[tuple[Group, np.ndarray]]:
        """(group, its rows of int32), after the wait."""
        for group, rows, event in self._launches:
            if event is not None:
                event.synchronize()
            yield group, rows.numpy().reshape(-1, len(KINDS))

    def bad(self) -> bool:
        """As little as can be done while the GPU has no other work."""
        remaining_bad = bool(self._remaining) and bool((self._rest_rows[:, :3] > 0).any())
        return remaining_bad or any(np.count_nonzero(counts[:, :3]) for _, counts in self._counts())

    def rows(self) -> np.ndarray:
        rows = np.empty((self._count, len(KINDS)))
        rows[self._remaining] = self._rest_rows
        for group, counts in self._counts():
            rows[group.members] = decode(counts, group.dtype)
        return rows


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return contextlib.nullcontext()
    return torch.cuda.device(device)
