"""The whole recording once more, in its order, over the memory it shared.

Every recorded storage is a buffer here. A replayed op's results replace the storages it wrote, so a later op
finds in the caches what the model's op found there. Without storages (no execution trace) a call uses buffers
of its signature: large ones rotate, so that they are out of the L2 cache as a model's weights are, small ones
stay.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from lab.rooms.kernels.replay.args import Arg, Call, ReplayPlan, TensorArg
from lab.rooms.kernels.workload.replay.build import Bound, bind, flat_outputs, footprint_bytes, with_tensors
from lab.rooms.kernels.workload.replay.fill import make
from lab.rooms.kernels.workload.replay.machine import l2_bytes, synchronize
from lab.rooms.kernels.workload.replay.memory import Memory

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
