"""order"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lab.rooms.kernels.replay.args import Arg, Call, ReplayPlan, TensorArg
from lab.rooms.kernels.workload.replay.build import Bound, bind, flat_outputs, footprint_bytes, with_tensors
from lab.rooms.kernels.workload.replay.fill import make
from lab.rooms.kernels.workload.replay.memory import Memory, storage_of

Ready = tuple[str, str, tuple[Arg, ...], bool]  # op, overload, arguments, whether numbers go in as tensors


ROTATED_BYTES = 1 << 20  # smaller calls keep their buffers


MOST_SETS = 64


class InOrder:
    """All calls of a plan that can be made; `run` makes them once."""

    def __init__(self, plan: ReplayPlan, ready: dict[int, Ready], device: torch.device) -> None:
        self.device = device
        self.memory = Memory(device)
        self.steps: list[tuple[int, Callable[[], tuple[Any, ...]], Call]] = []
        self._own = _OwnBuffers(ready, device)
        for place, call in enumerate(plan.calls):
            if call.sig in ready:
                self.steps.append((place, self._prepare(place, call, ready[call.sig]), call))

    def run(self, around: Callable[[int], Any]) -> None:
        """One pass. `around(place of the call)` is a context manager that holds nothing but the op."""
        for place, arguments, call in self.steps:
            function, args, kwargs = arguments()
            with around(place):
                result = function(*args, **kwargs)
            for tensor, (storage, _) in zip(flat_outputs(result), call.outs, strict=False):
                self.memory.now[storage] = storage_of(tensor)

    def once(self) -> None:
        """One pass, watched by nobody, to its end on the GPU."""
        self.run(lambda _: contextlib.nullcontext())
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _prepare(self, place: int, call: Call, ready: Ready) -> Callable[[], tuple[Any, ...]]:
        op, overload, args, numbers = ready
        if not call.ins:
            return self._own.of(call.sig)
        bound = bind(op, overload, [_light(arg) for arg in args], self.device)
        if numbers:
            bound = Bound(bound.function, with_tensors(bound.args), bound.kwargs)
        slots = self._slots(place, call, args)
        names = [arg.name for arg in args if arg.kwarg_only]

        def arguments() -> tuple[Any, ...]:
            values, named = list(bound.args), dict(bound.kwargs)
            for at, fetch in slots:
                if at < len(values):
                    values[at] = fetch()
                else:
                    named[names[at - len(values)]] = fetch()
            return bound.function, values, named

        return arguments

    def _slots(self, place: int, call: Call, args: Sequence[Arg]) -> list[tuple[int, Callable[[], Any]]]:
        """(place among the values, how to fetch them) of the arguments that are tensors in memory."""
        where = iter(call.ins)
        counter = itertools.count()
        slots: dict[str, Callable[[], Any]] = {}
        for arg in args:
            specs = [arg.tensor] if arg.tensor else list(arg.tensors or ())
            fetches = [
                self._fetch((place, next(counter)), spec, *next(where)) if spec else None for spec in specs
            ]
            if arg.tensor and fetches[0] is not None:
                slots[arg.name] = fetches[0]
            elif arg.tensors:
                slots[arg.name] = _all_of(fetches)
        ordered = [arg for arg in args if not arg.kwarg_only] + [arg for arg in args if arg.kwarg_only]
        return [(at, slots[arg.name]) for at, arg in enumerate(ordered) if arg.name in slots]

    def _fetch(
        self, key: tuple[int, int], spec: TensorArg, storage: int, offset: int
    ) -> Callable[[], Any] | None:
        if spec.number:
            return None
        if spec.index or storage < 0:
            # Indices stay within bounds whatever the replayed ops before them computed.
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
            op, overload, args, numbers = self._ready[sig]
            first = _bound(op, overload, args, numbers, self._device)
            size = footprint_bytes(first)
            count = 1 if size < ROTATED_BYTES else min(MOST_SETS, 1 + 2 * l2_bytes(self._device) // size)
            rest = [_bound(op, overload, args, numbers, self._device) for _ in range(count - 1)]
            self._sets[sig] = itertools.cycle([first, *rest])
        rotation = self._sets[sig]

        def arguments() -> tuple[Any, ...]:
            bound = next(rotation)
            return bound.function, bound.args, bound.kwargs

        return arguments


def _bound(op: str, overload: str, args: tuple[Arg, ...], numbers: bool, device: torch.device) -> Bound:
    bound = bind(op, overload, args, device)
    return Bound(bound.function, with_tensors(bound.args), bound.kwargs) if numbers else bound


def l2_bytes(device: torch.device) -> int:
    """Size of the GPU's L2 cache; 64 MiB where this torch does not tell it."""
    if device.type != "cuda":
        return 32 << 20
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 << 20))


def _light(arg: Arg) -> Arg:
    """The argument without its tensors, which are fetched at each call; numbers stay."""
    if arg.tensor and not arg.tensor.number:
        return Arg(name=arg.name, type=arg.type, kwarg_only=arg.kwarg_only)
    if arg.tensors:
        return Arg(name=arg.name, type=arg.type, kwarg_only=arg.kwarg_only)
    return arg


def _all_of(fetches: list[Callable[[], Any] | None]) -> Callable[[], Any]:
    return lambda: [fetch() if fetch else None for fetch in fetches]
