"""A loss's own operators: what the program did between the model's output and backward.

They pass through a dispatch mode. Of each only names, sizes and copies of small tensors are kept; of a large
tensor its largest magnitude, on its own device.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor

from lab.rooms.nan.guarded.read import Op
from lab.rooms.nan.watch.count import NORMED
from lab.rooms.nan.watch.guard.replay import (
    BAD_NUMBER,
    TorchDispatchMode,
    is_unwritten,
    numbers_in,
    op_of,
    tensors_in,
    user_line,
)
from lab.rooms.nan.watch.leaves import in_transform, is_odd, len_modes
from lab.rooms.nan.watch.shared import backwards
from lab.rooms.nan.watch.unseen_by_compile import hidden

MOST_CALLS = 1000  # of one step
SMALL = 1 << 16  # numbers of a tensor that is copied
BAD_ALREADY = "bad already: the batch or the model's output"
Key = tuple[int, torch.Size, torch.dtype]  # where its numbers lie, and which


class Call(NamedTuple):
    op: Op
    inputs: tuple[int, ...]  # places in the list of what was kept
    outputs: tuple[int, ...]
    has_infinite_number: bool


class Between:
    """One thread's operators since the last forward that came after a backward."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._copies: list[Tensor] = []  # copies, or largest magnitudes
        self._newest: dict[Key, int] = {}
        self._mode: Any = None  # while it lies on torch's stack
        self._count = -1  # backwards so far, when recording began
        self._losses: list[Tensor] = []

    def begin(self) -> None:
        """A forward has ended: record from here on, where nothing else is on torch's stack of modes."""
        if self._mode is not None or TorchDispatchMode is None or len_modes is None or len_modes():
            return
        if in_transform() or _has_compiled():
            return
        if self._count != backwards.count:
            self.forget()
            self._count = backwards.count
        self._mode = _Recording(self)
        self._mode.__enter__()

    @hidden
    def end(self) -> None:
        """A backward, an update or a forward begins."""
        mode, self._mode = self._mode, None
        if mode is None:
            return
        if len_modes is not None and len_modes() and _top_mode() is mode:
            mode.__exit__(None, None, None)
        else:  # the program has put one on top: ours only passes on from now
            mode.owner = None

    def forget(self) -> None:
        self._calls.clear()
        self._copies.clear()
        self._newest.clear()
        self._losses.clear()

    def is_loss(self, tensors: Sequence[Any]) -> None:
        """Backward begins at these, or the program asked about them."""
        if self._calls:
            self._losses += [
                tensor.detach() for tensor in tensors if isinstance(tensor, Tensor) and not is_odd(tensor)
            ]

    def note(self, func: Any, arguments: Any, output: Any) -> None:
        name = str(func)
        tensors = [tensor for tensor in tensors_in(arguments) if _counts(tensor)]
        outputs = [tensor for tensor in tensors_in(output) if _counts(tensor)]
        if len(self._calls) >= MOST_CALLS or not outputs or is_unwritten(name):
            return
        inputs = tuple(self._place(tensor) for tensor in tensors)
        places = tuple(self._keep(output) for output in outputs)
        op = op_of(name, "", tensors, user_line(), "")
        self._calls.append(Call(op, inputs, places, not all(map(math.isfinite, numbers_in(arguments)))))

    def _place(self, tensor: Tensor) -> int:
        place = self._newest.get(_key(tensor))
        return self._keep(tensor) if place is None else place

    def _keep(self, tensor: Tensor) -> int:
        if tensor.numel() > SMALL and tensor.dtype in NORMED:
            self._copies.append(torch.linalg.vector_norm(tensor.detach(), float("inf")))
        elif tensor.numel() > SMALL:
            self._copies.append(tensor.new_zeros(1))
        else:
            self._copies.append(tensor.detach().clone())
        place = self._newest[_key(tensor)] = len(self._copies) - 1
        return place

    def first_bad(self) -> tuple[Op | None, str]:
        """(the operator that made the first bad number of the losses, why none is named)"""
        if TorchDispatchMode is None or len_modes is None:
            return None, f"torch {torch.__version__} cannot look at operators"
        if not self._calls:
            reason = "a mode of torch's was on, or torch.compile is used" if backwards.count else "unseen"
            return None, f"the operators between the model and backward were not recorded ({reason})"
        wanted = {self._newest.get(_key(loss), -1) for loss in self._losses}
        ancestors = list[Call]()
        for call in reversed(self._calls):
            if wanted.intersection(call.outputs):
                ancestors.append(call)
                wanted.update(call.inputs)
        fallback = None
        for call in reversed(ancestors):
            bad_outputs = {_bad(self._copies[place]) for place in call.outputs} - {""}
            if not bad_outputs:
                continue
            bad_inputs = {_bad(self._copies[place]) for place in call.inputs} - {""}
            if not bad_inputs and not call.has_infinite_number:
                return replace(call.op, inputs="finite"), ""
            if "nan" in bad_outputs and "nan" not in bad_inputs:
                return replace(call.op, inputs="infinite, no NaN"), ""
            number = call.has_infinite_number and not bad_inputs
            fallback = fallback or replace(call.op, inputs=BAD_NUMBER if number else BAD_ALREADY)
        return fallback, "" if fallback else "no recorded operator made it: its backward did, or other code"


def _counts(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and not is_odd(tensor) and bool(tensor.numel())


def _bad(tensor: Tensor) -> str:
    """nan, inf or nothing."""
    if bool(torch.isnan(tensor).any()):
        return "nan"
    return "inf" if bool(torch.isinf(tensor).any()) else ""


def _key(tensor: Tensor) -> Key:
    return tensor.data_ptr(), tensor.shape, tensor.dtype


def _top_mode() -> Any:
    stack_at = getattr(torch._C, "_get_dispatch_stack_at", None)
    return stack_at(len_modes() - 1) if stack_at is not None and len_modes is not None else None


def _has_compiled() -> bool:
    """Whether dynamo has compiled anything: it would not run that under a mode."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters.get("frames"))


if TorchDispatchMode is not None:

    class _Recording(TorchDispatchMode):  # type: ignore[misc,no-untyped-call,unused-ignore]
        def __init__(self, owner: Between) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.owner: Between | None = owner

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            output = func(*args, **kwargs)
            if self.owner is not None:
                try:
                    self.owner.note(func, (args, kwargs), output)
                except Exception:  # what cannot be noted is not named, and the program goes on
                    self.owner = None
            return output


class _Local(threading.local):
    def __init__(self) -> None:
        self.between = Between()


local = _Local()
