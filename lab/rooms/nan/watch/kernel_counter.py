"""Counts of many tensors by the Triton kernel: one launch per type, one wait at the end."""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rooms.nan.watch.count import FORMATS, KINDS, LOW, Counted, plain_counts, refuse_freed
from lab.rooms.nan.watch.kernel import decode, has_pairs, piece_for, run
from lab.rooms.nan.watch.launch import Copy, Launch, launch_of

DTYPE, SHAPE = attrgetter("dtype"), attrgetter("shape")
MOST_LAYOUTS = 1024
MOST_BUFFERS = 64  # of one layout, whose counts are all on their way: a step may have as many equal layers
NO_ROWS = np.zeros((0, len(KINDS)))


class KernelCounter:
    """Rows as `plain_counts` gives them; tensors that the kernel cannot read are counted there.

    Equal forwards, and equal parts of a training step, differ only in addresses, so everything else that a
    call needs is kept for the next one.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[Any, Known] = OrderedDict()

    def __call__(self, tensors: Sequence[Tensor]) -> np.ndarray:
        return self.begin(tensors).rows()

    def begin(self, tensors: Sequence[Tensor]) -> Counted:
        """Launch all counts; wait only for tensors that the kernel cannot read."""
        layout = _layout(tensors)
        entry = self._entries.get(layout)
        if entry is not None and (pointers := _as_before(tensors)) is not None:
            with contextlib.suppress(KeyError):  # another thread has dropped it
                self._entries.move_to_end(layout)
            launched = Launched(len(tensors), entry.launch(pointers), [], NO_ROWS)
            launched.shapes = entry.shapes
            return launched
        refuse_freed(tensors)
        sizes, dtypes, devices = _about(tensors)
        groups, remaining, launches = _by_type(tensors, sizes, dtypes, devices)
        if groups and not remaining:  # else some tensor was counted another way
            self._entries[layout] = Known([(tensor.shape, tensor.dtype) for tensor in tensors], groups)
            if len(self._entries) > MOST_LAYOUTS:
                self._entries.popitem(last=False)
        return Launched(len(tensors), launches, remaining, plain_counts([tensors[at] for at in remaining]))


@dataclass
class Known:
    """What equal lists of tensors have in common."""

    shapes: list[tuple[torch.Size, torch.dtype]]
    groups: list[Group]

    def launch(self, pointers: np.ndarray) -> list[Found]:
        if len(self.groups) == 1:
            return [self.groups[0].launch(pointers)]
        return [group.launch(pointers[group.members]) for group in self.groups]


class Group:
    """Tensors of one type on one device: their indices, and how they are cut into pieces."""

    def __init__(
        self, dtype: torch.dtype, members: Sequence[int], words: Sequence[int], device: torch.device
    ) -> None:
        """`words`: the size of each in 32-bit words."""
        self.dtype, self.members, self.device = dtype, np.asarray(members, np.int64), device
        self.piece, self.pairs = piece_for(words), has_pairs(device)
        pieces = -(-np.asarray(words) // self.piece)
        self.pieces = int(pieces.sum())
        owners = np.repeat(np.arange(len(words)), pieces)
        self._columns = np.asarray(words), np.cumsum(pieces) - pieces, owners
        # By stream: streams do not wait for each other's uploads, nor before they reuse each other's memory.
        self._rooms: dict[int, Room] = {}

    def launch(self, pointers: np.ndarray) -> Found:
        """Counts of the tensors at these addresses, not waited for."""
        room = self._rooms.get(_stream(self.device)) or self._new_room()
        try:
            buffers = room.free.pop()  # in one step: another thread may launch, too
        except IndexError:
            with torch.inference_mode(False):  # memory made in that mode could not be written outside of it
                buffers = Buffers(len(pointers), self.device, room.table)
        buffers.launch(pointers, self)
        return Found(buffers, self, room)

    def _new_room(self) -> Room:
        with torch.inference_mode(False):
            room = Room(_on_device(self._columns, self.device), [])
        self._rooms[_stream(self.device)] = room
        return room


@dataclass
class Room:
    """What launches of a group on one stream take."""

    table: list[Tensor]
    free: list[Buffers]


class Buffers:
    """Memory for a launch: addresses and zeroed counts go up in one copy, counts come back in another."""

    def __init__(self, count: int, device: torch.device, table: list[Tensor]) -> None:
        self.on_gpu, self.shape = device.type == "cuda", (count, len(KINDS))
        words = -(-count * len(KINDS) // 2)
        begin = count + count % 2  # the kernel takes every address for a multiple of 16
        self._host = torch.zeros(begin + words, dtype=torch.int64, device="cpu", pin_memory=self.on_gpu)
        self._addresses = self._host.numpy()[:count]
        self._device = torch.empty(begin + words, dtype=torch.int64, device=device)
        self._counts = self._device[begin:].view(torch.int32)[: count * len(KINDS)]
        self._rows_of_launch = torch.empty(
            count * len(KINDS), dtype=torch.int32, device="cpu", pin_memory=self.on_gpu
        )
        self._rows: np.ndarray = self._rows_of_launch.numpy().reshape(count, len(KINDS))
        self._copied = _event(device) if self.on_gpu else None
        self._tables = (self._device, *table, self._counts)
        self._places = tuple(map(Tensor.data_ptr, self._tables))
        self._again: Launch | None = None
        self._asked = False

    def launch(self, pointers: np.ndarray, group: Group) -> None:
        self._addresses[:] = pointers
        with _on(group.device):
            if self._again is None or not self._again(_stream(group.device)):
                self._launch_by_torch(group)
            if self._copied is not None:
                self._copied.record()

    def _launch_by_torch(self, group: Group) -> None:
        self._device.copy_(self._host, non_blocking=True)
        kernel = run(group.pieces, self._tables, self._places, group.piece, group.dtype, pairs=group.pairs)
        self._rows_of_launch.copy_(self._counts, non_blocking=True)
        if not self._asked:
            self._asked = True
            copies = _copy(self._device, self._host), _copy(self._rows_of_launch, self._counts)
            self._again = launch_of(kernel, group.pieces, (*self._places, group.piece), copies)

    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()

    def read(self, rows: np.ndarray) -> None:
        """Put the counts, (tensors, kinds) int32, into `rows`, after the wait for them."""
        self.wait()
        rows[:] = self._rows


class Found:
    """One group's counts on their way. Memory without a wait goes with its last reference, after a
    wait: torch does not know of the driver's copies into it, and would give it to others.
    """

    _buffers: Buffers | None = None

    def __init__(self, buffers: Buffers, group: Group, room: Room) -> None:
        self._buffers = buffers
        self.group, self._room = group, room
        # Made before a forward's tensors go: asked for this much, malloc looks through all that was freed.
        self._counts = np.empty(buffers.shape, np.int32)

    def bad(self) -> bool:
        """Whether anything is NaN or infinite, after the wait; the next launch may have the memory."""
        return bool(np.count_nonzero(self._waited()[:, :3]))  # half the time of `any`

    def rows(self) -> np.ndarray:
        return decode(self._waited(), self.group.dtype)

    def _waited(self) -> np.ndarray:
        buffers = self._buffers
        if buffers is not None:
            buffers.read(self._counts)
            self._buffers = None  # first: given back twice, two launches would have it
            if len(self._room.free) < MOST_BUFFERS:
                self._room.free.append(buffers)
        return self._counts

    def __del__(self) -> None:
        if self._buffers is not None and not sys.is_finalizing():
            self._buffers.wait()


class Launched(Counted):
    """The counts of all groups on their way, and those of the rest."""

    by_gpu = True

    def __init__(
        self, count: int, launches: list[Found], remaining: list[int], rest_rows: np.ndarray
    ) -> None:
        self._count, self._launches, self._remaining, self._rest_rows = count, launches, remaining, rest_rows

    def bad(self) -> bool:
        """As little as can be done while the GPU has no other work."""
        remaining_bad = bool(self._remaining) and bool((self._rest_rows[:, :3] > 0).any())
        return remaining_bad or any(launch.bad() for launch in self._launches)

    def rows(self) -> np.ndarray:
        if len(self._launches) == 1 and not self._remaining:  # members are in order
            return self._launches[0].rows()
        rows = np.empty((self._count, len(KINDS)))
        rows[self._remaining] = self._rest_rows
        for launch in self._launches:
            rows[launch.group.members] = launch.rows()
        return rows


def _about(tensors: Sequence[Tensor]) -> tuple[list[int], list[torch.dtype], list[int]]:
    """Sizes, types and devices."""
    return [*map(Tensor.numel, tensors)], [*map(DTYPE, tensors)], [*map(Tensor.get_device, tensors)]


def _layout(tensors: Sequence[Tensor]) -> Any:
    """Shapes, types and devices."""
    return (*map(SHAPE, tensors), *map(DTYPE, tensors), *map(Tensor.get_device, tensors))


def _as_before(tensors: Sequence[Tensor]) -> np.ndarray | None:
    """The addresses if only these are new; None if a tensor now needs a copy or another way."""
    if not all(map(Tensor.is_contiguous, tensors)) or any(map(Tensor.is_neg, tensors)):
        return None
    pointers = np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))
    if int(np.bitwise_or.reduce(pointers)) & 15:
        return None
    if int(pointers.min()) < LOW:
        refuse_freed(tensors)
    return pointers


def _by_type(
    tensors: Sequence[Tensor], sizes: list[int], dtypes: list[torch.dtype], devices: list[int]
) -> tuple[list[Group], list[int], list[Found]]:
    """(groups, indices of tensors for `plain_counts`, counts of each group); launched before any wait."""
    places: dict[tuple[torch.dtype, int], list[int]] = {}
    for index, key in enumerate(zip(dtypes, devices, strict=True)):
        places.setdefault(key, []).append(index)
    groups, remaining, launches = [], [], []
    for (dtype, device), members in places.items():
        if dtype not in FORMATS or device < 0:
            remaining += members
            continue
        table = _table([tensors[index] for index in members], [sizes[index] for index in members], dtype)
        remaining += [index for index, use in zip(members, table.chosen, strict=True) if not use]
        if table.words:
            members = [index for index, use in zip(members, table.chosen, strict=True) if use]
            groups.append(Group(dtype, members, table.words, tensors[members[0]].device))
            launches.append(groups[-1].launch(table.pointers))
    return groups, remaining, launches


def _on_device(columns: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Columns of int32 by one copy, without the wait that a copy from ordinary memory is.

    The kernel takes every address for a multiple of 16.
    """
    ends = np.cumsum([len(column) + -len(column) % 4 for column in columns]).tolist()
    begins = [0, *ends[:-1]]
    host = torch.zeros(ends[-1], dtype=torch.int32, device="cpu", pin_memory=device.type == "cuda")
    for begin, column in zip(begins, columns, strict=True):
        host.numpy()[begin : begin + len(column)] = column
    on_device = host.to(device, non_blocking=True)
    return [on_device[begin : begin + len(column)] for begin, column in zip(begins, columns, strict=True)]


@dataclass(frozen=True)
class Table:
    """Which tensors the kernel can read, and what it needs to read them."""

    chosen: list[bool]
    words: list[int]
    pointers: np.ndarray
    held: list[Tensor]


def _table(tensors: list[Tensor], sizes: list[int], dtype: torch.dtype) -> Table:
    """The kernel reads words of 32 bits from addresses that 16 divides.

    Counting does not care for order, but gaps need a copy.
    """
    dense = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]
    dense = [tensor.resolve_neg() for tensor in dense]  # the imaginary part of a conjugate has other signs
    pointers = [tensor.data_ptr() for tensor in dense]
    per_word = 1 if dtype is torch.float32 else 2
    chosen = [
        not pointer % 16 and not size % per_word and 0 < size < 2**31
        for pointer, size in zip(pointers, sizes, strict=True)
    ]
    words = [size // per_word for size, use in zip(sizes, chosen, strict=True) if use]
    chosen_pointers = [pointer for pointer, use in zip(pointers, chosen, strict=True) if use]
    return Table(chosen, words, np.array(chosen_pointers, dtype=np.int64), dense)


def _copy(to: Tensor, of: Tensor) -> Copy:
    return Copy(to.data_ptr(), of.data_ptr(), of.numel() * of.element_size())


def _stream(device: torch.device) -> int:
    """The stream on which this thread works on the device now."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


def _event(device: torch.device) -> Any:
    """torch's general one, where it is there, finds the current stream in C++: 30 us less on a slow host."""
    general = getattr(torch, "Event", None)
    return general(device=device) if general is not None else torch.cuda.Event()  # type: ignore[no-untyped-call]


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return contextlib.nullcontext()
    return torch.cuda.device(device)
