"""The storages of a recording, as buffers on this machine.

An execution trace names a storage by its address. Every tensor without memory (empty ones, and the wrappers
that tensor parallel ops return) is recorded under the id of the null address, which is not a storage.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lab.perfmodel.dtypes import ITEM_BYTES
from lab.rooms.kernels.replay.args import Arg, Call, ReplayPlan, TensorArg, extent
from lab.rooms.kernels.workload.replay.build import (
    Bound,
    bind,
    flat_outputs,
    footprint_bytes,
    make,
    with_tensors,
)
from lab.rooms.kernels.workload.replay.machine import l2_bytes, synchronize


class Memory:
    """Storage id -> the buffer in its place now.

    A buffer that no op wrote is filled once and kept for later passes.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers: dict[int, Any] = {}
        self.parted = 0  # results whose memory the recording keeps apart from what it still belongs to here
        self._unwritten: dict[tuple[int, int], Tensor] = {}
        self._owner: dict[int, int] = {}  # address -> the storage id that was put there last

    def tensor(self, key: tuple[int, int], spec: TensorArg, storage: int, offset: int) -> Tensor:
        """The recorded tensor over its buffer; `key` identifies this use of it, the same in every pass."""
        dtype: torch.dtype = getattr(torch, spec.dtype)
        if 0 in spec.shape:  # an op that grows it must not grow the memory of another one
            return torch.empty(0, dtype=dtype, device=self._place(spec)).as_strided(spec.shape, spec.stride)
        needed = (offset + extent(spec.shape, spec.stride)) * ITEM_BYTES[spec.dtype]
        held = self.buffers.get(storage)
        if held is None or held.nbytes() < needed or held.device.type != self._place(spec).type:
            held = self.buffers[storage] = self._filled(key, spec, offset)
        return over(held, dtype, offset, spec)

    def put(self, storage: int, result: Tensor) -> None:
        """From now on `result` is what the storage holds; a result without memory empties its place."""
        if not has_memory(result):
            self.buffers.pop(storage, None)
            return
        memory = storage_of(result)
        earlier = self._owner.get(memory.data_ptr(), storage)
        held = self.buffers.get(earlier)
        if earlier != storage and held is not None and held.data_ptr() == memory.data_ptr():
            del self.buffers[
                earlier
            ]  # two recorded storages never share a buffer: the older one gets a new one
            self.parted += 1
        self._owner[memory.data_ptr()] = storage
        self.buffers[storage] = memory

    def _place(self, spec: TensorArg) -> torch.device:
        return torch.device("cpu") if spec.device == "cpu" else self.device

    def _filled(self, key: tuple[int, int], spec: TensorArg, offset: int) -> Any:
        if key not in self._unwritten:
            flat = TensorArg(
                dtype=spec.dtype,
                shape=(offset + extent(spec.shape, spec.stride),),
                stride=(1,),
                device=spec.device,
                low=spec.low,
                high=spec.high,
            )
            self._unwritten[key] = make("", flat, self.device, seed=key[0])
        return storage_of(self._unwritten[key])


def has_memory(tensor: Tensor) -> bool:
    """Whether the elements of `tensor` lie in its storage: a wrapper's has a size but no address."""
    return type(tensor) in (Tensor, torch.nn.Parameter) and storage_of(tensor).data_ptr() != 0


def storage_of(tensor: Tensor) -> Any:
    """The bytes of a tensor; before torch 2.0 they are inside a typed storage."""
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    return tensor.storage()._storage  # type: ignore[no-untyped-call]


def over(storage: Any, dtype: torch.dtype, offset: int, spec: TensorArg) -> Tensor:
    """A tensor of `spec` over the bytes of `storage`, from element `offset`."""
    empty = torch.empty(0, dtype=dtype, device=storage.device)
    if not hasattr(empty, "untyped_storage"):
        storage = torch._TypedStorage(wrap_storage=storage, dtype=dtype)  # type: ignore[attr-defined]
    return empty.set_(storage, offset, spec.shape, spec.stride)


ROTATED_BYTES = 1 << 20  # smaller calls keep their buffers
MOST_SETS = 64


class Ready(NamedTuple):
    """A resolved call."""

    op: str
    overload: str
    args: tuple[Arg, ...]
    numbers: bool  # whether Python numbers go in as 0-dim tensors

    def bind(self, device: torch.device) -> Bound:
        """The call with buffers of its own."""
        bound = bind(self.op, self.overload, self.args, device)
        return Bound(bound.function, with_tensors(bound.args), bound.kwargs) if self.numbers else bound


class InOrder:
    """All calls of a plan that can be made; `run` makes them once."""

    def __init__(self, plan: ReplayPlan, ready: dict[int, Ready], device: torch.device) -> None:
        self.device = device
        self.memory = Memory(device)
        self.steps: list[tuple[int, Callable[[], tuple[Any, ...]], Call]] = []
        self._own_buffers = _OwnBuffers(ready, device)
        for index, call in enumerate(plan.calls):
            if call.sig in ready:
                self.steps.append((index, self._prepare(index, call, ready[call.sig]), call))

    def run(self, around: Callable[[int], Any]) -> None:
        """One pass. `around(index of the call)` is a context manager around the op alone."""
        for index, arguments, call in self.steps:
            function, args, kwargs = arguments()
            with around(index):
                result = function(*args, **kwargs)
            for tensor, (storage, _) in zip(flat_outputs(result), call.outs, strict=False):
                self.memory.put(storage, tensor)

    def once(self) -> None:
        """One pass without an observer, until the GPU has finished."""
        self.run(lambda _: contextlib.nullcontext())
        synchronize(self.device)

    def _prepare(self, index: int, call: Call, ready: Ready) -> Callable[[], tuple[Any, ...]]:
        """A function that returns (op, args, kwargs), with the tensors that are in memory at that time."""
        if not call.ins:
            return self._own_buffers.of(call.sig)
        bound = ready._replace(args=tuple(map(_without_tensors, ready.args))).bind(self.device)
        slots = self._slots(index, call, ready.args)
        names = [arg.name for arg in ready.args if arg.kwarg_only]

        def arguments() -> tuple[Any, ...]:
            values, named = list(bound.args), dict(bound.kwargs)
            for position, fetch in slots:
                if position < len(values):
                    values[position] = fetch()
                else:
                    named[names[position - len(values)]] = fetch()
            return bound.function, values, named

        return arguments

    def _slots(self, index: int, call: Call, args: Sequence[Arg]) -> list[tuple[int, Callable[[], Any]]]:
        """(position among the values, how to fetch it) of each argument that is in memory."""
        storages = iter(call.ins)
        counter = itertools.count()
        slots: dict[str, Callable[[], Any]] = {}
        for arg in args:
            specs = [arg.tensor] if arg.tensor else list(arg.tensors or ())
            fetches = [
                self._fetch((index, next(counter)), spec, *next(storages)) if spec else None for spec in specs
            ]
            if arg.tensor and fetches[0] is not None:
                slots[arg.name] = fetches[0]
            elif arg.tensors:
                slots[arg.name] = _all_of(fetches)
        ordered = [arg for arg in args if not arg.kwarg_only] + [arg for arg in args if arg.kwarg_only]
        return [(position, slots[arg.name]) for position, arg in enumerate(ordered) if arg.name in slots]

    def _fetch(
        self, key: tuple[int, int], spec: TensorArg, storage: int, offset: int
    ) -> Callable[[], Any] | None:
        if spec.number:
            return None
        if spec.index or storage < 0:
            # Indices must stay within bounds, whatever earlier replayed ops computed.
            fixed = make("", spec, self.device, seed=key[0])
            return lambda: fixed
        return lambda: self.memory.tensor(key, spec, storage, offset)


class _OwnBuffers:
    """Buffers by signature, for recordings that do not say which tensors share memory."""

    def __init__(self, ready: dict[int, Ready], device: torch.device) -> None:
        self._ready, self._device = ready, device
        self._sets: dict[int, Any] = {}

    def of(self, sig: int) -> Callable[[], tuple[Any, ...]]:
        if sig not in self._sets:
            ready = self._ready[sig]
            bound = ready.bind(self._device)
            size = footprint_bytes(bound)
            count = 1 if size < ROTATED_BYTES else min(MOST_SETS, 1 + 2 * l2_bytes(self._device) // size)
            copies = [ready.bind(self._device) for _ in range(count - 1)]
            self._sets[sig] = itertools.cycle([bound, *copies])
        rotation = self._sets[sig]

        def arguments() -> tuple[Any, ...]:
            bound = next(rotation)
            return bound.function, bound.args, bound.kwargs

        return arguments


def _without_tensors(arg: Arg) -> Arg:
    """The argument without its tensors, which are fetched at each call; numbers stay."""
    if arg.tensors or (arg.tensor and not arg.tensor.number):
        return Arg(name=arg.name, type=arg.type, kwarg_only=arg.kwarg_only)
    return arg


def _all_of(fetches: list[Callable[[], Any] | None]) -> Callable[[], Any]:
    return lambda: [fetch() if fetch else None for fetch in fetches]
