"""The Triton kernel of the watch: NaN, infinities, subnormals and the largest magnitude of many tensors in one launch.

Numbers are read as integers: above the sign bit, an IEEE number's bits order like its magnitude, infinity is the exponent's
bits alone, what is greater is NaN, what is below the least normal number is zero or subnormal. So one kernel serves half,
bfloat16 and float, and no mode of the GPU can flush what it counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from lab.rooms.nan.watch.count import FORMATS, KINDS, Counted, plain_counts

BLOCK = 2048  # words that a program reads at a time
MOST_PARTS = 64  # programs that share a tensor
DTYPE = attrgetter("dtype")
NO_ROWS = np.zeros((0, len(KINDS)))
_compiled: dict[tuple[Any, ...], Any] = {}


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
        return self.begin(tensors).rows()

    def begin(self, tensors: Sequence[Tensor]) -> Counted:
        """Everything launched, nothing waited for but what the kernel cannot read."""
        sizes, devices = [*map(Tensor.numel, tensors)], [*map(Tensor.get_device, tensors)]
        dtypes = [*map(DTYPE, tensors)]
        last = self._last
        if last.groups and (sizes, dtypes, devices) == (last.sizes, last.dtypes, last.devices):
            launched = _as_before(tensors, last)
            if launched is not None:
                return launched
        groups, rest, found = _by_type(tensors, sizes, dtypes, devices)
        self._last = Layout(sizes, dtypes, devices, [] if rest else groups)
        return Launched(len(tensors), found, rest, plain_counts([tensors[at] for at in rest]))


class Group:
    """Tensors of one type on one device: which, their words of 32 bits (on that device), and the most of these."""

    def __init__(self, dtype: torch.dtype, members: Sequence[int], words: Tensor, most_words: int) -> None:
        self.dtype, self.members, self.words = dtype, np.asarray(members, np.int64), words
        self.parts = min(MOST_PARTS, triton.cdiv(most_words, 4 * BLOCK))
        self._buffers: Buffers | None = None

    def launch(self, pointers: np.ndarray) -> Found:
        """Counts of the tensors at these addresses, not waited for."""
        if self._buffers is None or self._buffers.busy:
            self._buffers = Buffers(len(pointers), self.words.device)
        return self._buffers.launch(pointers, self)


@dataclass(frozen=True)
class Layout:
    """What equal forwards share; without groups where some tensor went another way."""

    sizes: list[int]
    dtypes: list[torch.dtype]
    devices: list[int]
    groups: list[Group]


class Buffers:
    """Memory for a launch: addresses and zeroed counts go up in one copy, counts come back in another."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.on_gpu, self.busy = device.type == "cuda", False
        words = -(-count * len(KINDS) // 2)
        begin = count + count % 2  # the kernel takes every address for a multiple of 16
        self._host = torch.zeros(begin + words, dtype=torch.int64, pin_memory=self.on_gpu)
        self._addresses = self._host.numpy()[:count]
        self._device = torch.empty(begin + words, dtype=torch.int64, device=device)
        self._counts = self._device[begin:].view(torch.int32)[: count * len(KINDS)]
        self._found = torch.empty((count, len(KINDS)), dtype=torch.int32, pin_memory=self.on_gpu)
        self._done = torch.cuda.Event() if self.on_gpu else None  # type: ignore[no-untyped-call]

    def launch(self, pointers: np.ndarray, group: Group) -> Found:
        self.busy = True
        self._addresses[:] = pointers
        self._device.copy_(self._host, non_blocking=True)
        with _on(self._device.device):
            _run((len(pointers), group.parts), (self._device, group.words, self._counts), group.dtype)
            self._found.view(-1).copy_(self._counts, non_blocking=True)
            if self._done is not None:
                self._done.record()
        return Found(self, group)

    def wait(self) -> np.ndarray:
        """(tensors, kinds) int32; a copy, so that the next launch may have the memory."""
        if self._done is not None:
            self._done.synchronize()
        self.busy = False
        found: np.ndarray = self._found.numpy().copy()
        return found


@dataclass(frozen=True)
class Found:
    """One group's counts on their way."""

    buffers: Buffers
    group: Group

    def rows(self) -> np.ndarray:
        return _decode(self.buffers.wait(), self.group.dtype)


class Launched(Counted):
    """The counts of all groups on their way, and those of the rest."""

    def __init__(self, count: int, found: list[Found], rest: list[int], rest_rows: np.ndarray) -> None:
        self._count, self._found, self._rest, self._rest_rows = count, found, rest, rest_rows

    def rows(self) -> np.ndarray:
        if len(self._found) == 1 and not self._rest:  # members are in order
            return self._found[0].rows()
        rows = np.empty((self._count, len(KINDS)))
        rows[self._rest] = self._rest_rows
        for one in self._found:
            rows[one.group.members] = one.rows()
        return rows


def _as_before(tensors: Sequence[Tensor], last: Layout) -> Launched | None:
    """The counts where only addresses are new; None where a tensor needs a copy or another way now."""
    if not all(map(Tensor.is_contiguous, tensors)):
        return None
    pointers = np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))
    if int(np.bitwise_or.reduce(pointers)) & 15:
        return None
    if len(last.groups) == 1:
        return Launched(len(tensors), [last.groups[0].launch(pointers)], [], NO_ROWS)
    return Launched(
        len(tensors), [group.launch(pointers[group.members]) for group in last.groups], [], NO_ROWS
    )


def _by_type(
    tensors: Sequence[Tensor], sizes: list[int], dtypes: list[torch.dtype], devices: list[int]
) -> tuple[list[Group], list[int], list[Found]]:
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
            found.append(groups[-1].launch(table.pointers))
    return groups, rest, found


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


def _run(grid: tuple[int, int], args: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    """`_count` over `grid` on the current device. What Triton finds out at every launch is found out once: half of its price."""
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


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return contextlib.nullcontext()
    return torch.cuda.device(device)


def _decode(found: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """int32 rows -> float64 rows; the last column's bits become the number they spell."""
    rows = found.astype(np.float64)
    bits = found[:, 4].copy()
    if dtype is torch.float16:
        rows[:, 4] = bits.astype(np.int16).view(np.float16)
    else:  # bfloat16 is the upper half of a float
        rows[:, 4] = (bits << 16 if dtype is torch.bfloat16 else bits).view(np.float32)
    return rows
