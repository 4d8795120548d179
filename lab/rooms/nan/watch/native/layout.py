"""Where in the memory of objects what the C beside this reads at every call stands: found out, not assumed.

An attribute of Python's costs hundreds of instructions and touches ten lines of the processor's cache.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable
from functools import cache, partial, reduce
from operator import and_, or_
from typing import Any, TypeVar

import torch
from torch import Tensor

from lab.rooms.nan.watch.quiet import quiet

CPU = torch.device("cpu")
WORD = ctypes.sizeof(ctypes.c_void_p)
WORDS = range(2, 8)  # of a tensor's inner object, one of which leads to its version
INSIDE = range(WORD, 4 * WORD, 4)  # bytes into what that leads to
LONGEST = 32 * WORD  # bytes of it that are looked at
SIGNED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OTHER_TYPES = (
    *(torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
MOST_INLINE = 5  # dimensions whose sizes and steps stand in torch's own object; more stand elsewhere
INLINE = 1 + 2 * MOST_INLINE
MOST_LOOKS = 6
ALL_BITS = (1 << 8 * WORD) - 1
NO_BODY = (0, 0, 0, 0)
Place = TypeVar("Place")
floats = partial(torch.zeros, dtype=torch.float32, device=CPU)
WRITES = (0, 1, 2, 3, 5, 64, 300)  # of the tensors by which it is found


def place_of(word: int, held: Any) -> int:
    """Where in the memory of a Python object this word stands, in bytes; -1 if not once, or not aligned."""
    memory = ctypes.string_at(id(held), type(held).__basicsize__)
    searched = word.to_bytes(WORD, sys.byteorder)
    place = memory.find(searched)
    return -1 if place % WORD or memory.count(searched) != 1 else place


def as_numbers(*places: int) -> ctypes.Array[ctypes.c_int64]:
    """As the C takes them."""
    return (ctypes.c_int64 * len(places))(*places)


@cache
def type_at() -> int:
    """Where any object has its type, in bytes; 0 if that is not one place in objects of several kinds."""
    kinds: tuple[Any, ...] = (object(), 1 << 200, [], {}, int, torch.empty(0, device=CPU))
    plain = max(0, place_of(id(object), kinds[0]))
    memory = (ctypes.string_at(id(one) + plain, WORD) for one in kinds)
    found = [int.from_bytes(one, sys.byteorder) for one in memory]
    return plain if found == [id(type(one)) for one in kinds] else 0


@cache
def inner_at() -> int:
    """Where a tensor's object has the address of torch's own one, in bytes; 0 if it is not found."""
    tensor = torch.empty(0, device=CPU)
    return max(0, place_of(int(tensor._cdata), tensor))


@cache
def version_at() -> tuple[int, int]:
    """(where torch's own object of a tensor leads to its version, where it stands there), in bytes.

    (0, 0) if there is not exactly one such place, in a tensor that was written never, once, or often.
    """
    return _only_one(_versions)


@cache
def negative_at() -> tuple[int, int]:
    """(where torch's own object of a tensor says that its numbers have the other sign, in bytes; the bit).

    (0, 0) if there is not exactly one bit that views of the other sign have and all others have not.
    """
    return _only_one(_signs) if hasattr(torch, "_neg_view") else (0, 0)


@cache
def body_at() -> tuple[int, ...]:
    """Where torch's own object of a tensor says all that equal tensors have in common, in bytes.

    (where it leads to its memory, where the address stands there, where it says how far from that this tensor
    begins, where the common part begins, and of each word of that the bits that equal tensors share). Of
    zeros if not each is found once. The sign's bit lies in the last word (`negative_at`).
    """
    end, _ = negative_at()
    found = _searched(lambda file: _bodies(file, end + WORD)) if end else []
    return found[0] if len(found) == 1 else NO_BODY


def _only_one(search: Callable[[int], list[tuple[int, int]]]) -> tuple[int, int]:
    """The place that is found; (0, 0) if there is not just one."""
    found = _searched(search)
    return found[0] if len(found) == 1 else (0, 0)


def _searched(search: Callable[[int], list[Place]]) -> list[Place]:
    """What is found, whatever the program has switched on; nothing where this memory cannot be looked at."""
    if not inner_at():
        return []
    try:
        # Where no memory is, reading this file reads nothing, and no harm is done.
        file = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:
        return []
    try:
        with torch.inference_mode(False):
            return quiet(search, file)
    except Exception:  # then torch is asked each time, as where nothing is found
        return []
    finally:
        os.close(file)


def _versions(file: int) -> list[tuple[int, int]]:
    tensors = [_written(times) for times in WRITES]
    return [
        (word * WORD, inside)
        for word in WORDS
        for inside in INSIDE
        if all(_is_there(file, one, word * WORD, inside) for one in tensors)
    ]


def _signs(file: int) -> list[tuple[int, int]]:
    """More tensors are looked at while other bits tell both kinds apart, too: by chance."""
    kept = [_of_both_signs()]  # whose memory the next do not get
    found = _bits_that_tell(file, *kept[0])
    while len(found) > 1 and len(kept) < MOST_LOOKS:
        kept.append(_of_both_signs())
        again = _bits_that_tell(file, *kept[-1])
        found = [one for one in found if one in again]
    return found


def _bits_that_tell(file: int, usual: list[Tensor], negative: list[Tensor]) -> list[tuple[int, int]]:
    found = []
    for at in range(WORD, LONGEST, WORD):
        bits = [_read(file, int(one._cdata) + at, WORD) for one in (*usual, *negative)]
        mask = reduce(and_, bits[len(usual) :]) & ~reduce(or_, bits[: len(usual)])
        found += [(at, 1 << bit) for bit in range(8 * WORD) if mask >> bit & 1]
    return found


def _of_both_signs() -> tuple[list[Tensor], list[Tensor]]:
    """Tensors of many kinds, more than share a bit of an address by chance; and views of the other sign."""
    own = [torch.zeros(2, 1 + size, dtype=dtype, device=CPU) for size in range(8) for dtype in SIGNED]
    own += [
        torch.zeros(2, 3, device=CPU).requires_grad_(),
        torch.zeros(2, 3, dtype=torch.cfloat, device=CPU),
        torch.zeros(2, 3, dtype=torch.int32, device=CPU),
    ]
    views = [*own, *(one[:, :1] for one in own), *(one.t() for one in own)]
    conjugated = [torch.zeros(2, 1 + size, dtype=torch.cfloat, device=CPU).conj() for size in range(8)]
    return [*views, *conjugated], [*map(torch._neg_view, views), *(one.imag for one in conjugated)]


def _bodies(file: int, end: int) -> list[tuple[int, ...]]:
    """As `body_at`. Tensors of other types, shapes or on another device must differ in the bits shared."""
    tensors, places = _lying_differently(), range(2 * WORD, end, WORD)
    firsts = [at for at in places if all(_says_shape(file, one, at) for one in tensors)]
    offsets = [
        at
        for at in places
        if all(_read(file, int(one._cdata) + at, WORD) == one.storage_offset() for one in tensors)
    ]
    memories = [
        (word * WORD, inside)
        for word in WORDS
        for inside in range(WORD, 8 * WORD, WORD)
        if all(_begins_at(file, one, word * WORD, inside) for one in tensors)
    ]
    if not len(firsts) == len(offsets) == len(memories) == 1:
        return []
    (first,), (offset,), (memory,) = firsts, offsets, memories
    words = range(first, end, WORD)
    if not memory[0] < first < first + INLINE * WORD <= offset < end:
        return []

    def body(tensor: Tensor) -> list[int]:
        return [_read(file, int(tensor._cdata) + at, WORD) for at in words]

    equal = [*map(body, _alike())]
    shared = [~(reduce(or_, column) ^ reduce(and_, column)) & ALL_BITS for column in zip(*equal, strict=True)]
    if any(mask != ALL_BITS for mask in shared[:INLINE]):  # sizes that these do not have are not told
        return []
    shared[(offset - first) // WORD] = 0
    others = (tuple(map(and_, body(one), shared)) for one in _different())
    different = {tuple(map(and_, equal[0], shared)), *others}
    told = len(different) == 1 + len(_different())
    return [(*memory, offset, first, *shared)] if told else []


def _alike() -> list[Tensor]:
    """Equal tensors, made where each bit that torch leaves as it was is now 0, now 1."""
    libc, found = ctypes.CDLL(None), list[Tensor]()
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    for bits in (0x00, 0xFF):
        sizes = [size for size in range(3 * LONGEST // 8, 9 * LONGEST // 8, 2 * WORD) for _ in range(8)]
        rooms = [(libc.malloc(size), size) for size in sizes]
        for room, size in rooms:
            ctypes.memset(room, bits, size)
        for room, _ in rooms:
            libc.free(room)
        found += [floats(2, 3) for _ in range(4)]
    base = floats(40)
    return [*found, base[:6].view(2, 3), base[9:15].view(2, 3)]


def _different() -> list[Tensor]:
    """No two of these are equal, nor is any equal to those of `_alike`."""
    found = [torch.zeros(2, 3, dtype=dtype, device=CPU) for dtype in OTHER_TYPES]
    turned, flat = floats(3, 2), floats(6)
    return [*found, floats(2, 3, device="meta"), turned, turned.t(), flat, torch._neg_view(flat.view(2, 3))]


def _lying_differently() -> list[Tensor]:
    """Tensors of up to five dimensions, which lie at many places of memory that torch has not made, too."""
    given = torch.frombuffer(bytearray(4 * 5000), dtype=torch.float32)
    bases = [torch.zeros(5000, dtype=dtype, device=CPU) for dtype in SIGNED]
    sizes = ((), (3,), (3, 5), (2, 3, 7), (2, 3, 5, 7), (2, 3, 4, 5, 6))
    return [
        base[begin : begin + math.prod(size)].view(size).transpose(0, -1) if size else base[begin]
        for begin in (0, 7, 1234)
        for base in (*bases, given)
        for size in sizes
    ]


def _says_shape(file: int, tensor: Tensor, at: int) -> bool:
    """Whether there stand how many dimensions, their sizes, and their steps."""
    words = [_read(file, int(tensor._cdata) + at + WORD * word, WORD) for word in range(INLINE)]
    sizes, steps = words[1 : 1 + MOST_INLINE], words[1 + MOST_INLINE :]
    dims = tensor.dim()
    return words[0] == dims and (*sizes[:dims], *steps[:dims]) == (*tensor.shape, *tensor.stride())


def _begins_at(file: int, tensor: Tensor, word: int, inside: int) -> bool:
    leads_to = _read(file, int(tensor._cdata) + word, WORD)
    begin = tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()
    return leads_to != 0 and _read(file, leads_to + inside, WORD) == begin


def _written(times: int) -> Tensor:
    tensor = torch.zeros(1, device=CPU)
    for _ in range(times):
        tensor.zero_()
    return tensor


def _is_there(file: int, tensor: Tensor, word: int, inside: int) -> bool:
    leads_to = _read(file, int(tensor._cdata) + word, WORD)
    return leads_to != 0 and _read(file, leads_to + inside, 4) == tensor._version


def _read(file: int, address: int, size: int) -> int:
    """A number in this process's memory; 0 if nothing is there."""
    try:
        return int.from_bytes(os.pread(file, size, address), sys.byteorder)
    except (OSError, OverflowError):
        return 0
