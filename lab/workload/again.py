"""A moment of a program, so that something can be computed again as it was then.

It holds what a forward depends on beside its inputs and weights: random numbers, buffers and autocast.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Moment(NamedTuple):
    random: dict[str, Any]  # state by generator
    buffers: list[tuple[Tensor, Tensor]]  # each with its value
    autocast: list[tuple[str, Any]]  # where it is on, and its type


def moment(buffers: Iterable[Tensor]) -> Moment:
    """How it is now."""
    return Moment(random_state(), [(buffer, buffer.detach().clone()) for buffer in buffers], _autocast())


@contextlib.contextmanager
def at(then: Moment) -> Iterator[None]:
    """The state of then; afterwards that of now, in place."""
    present = moment(buffer for buffer, _ in then.buffers)
    try:
        put(then.buffers)
        with contextlib.ExitStack() as stack:
            for device, dtype in then.autocast:
                stack.enter_context(torch.autocast(device, dtype=dtype))
            _set_random(then.random)  # last: what stands above may have drawn
            yield
    finally:
        _set_random(present.random)
        put(present.buffers)


def put(values: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Give each tensor its value, in place."""
    with torch.no_grad():
        for tensor, value in values:
            tensor.copy_(value)


def random_state() -> dict[str, Any]:
    """The state of every generator that a program draws from without naming it."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _set_random(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        sys.modules["numpy"].random.set_state(state["numpy"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])


def _autocast() -> list[tuple[str, Any]]:
    dtype_of = getattr(torch, "get_autocast_dtype", None)
    if dtype_of is not None:  # since torch 2.4, which warns of the older names
        return [(kind, dtype_of(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    try:
        on_cpu = [("cpu", torch.get_autocast_cpu_dtype())] if torch.is_autocast_cpu_enabled() else []
        on_gpu = [("cuda", torch.get_autocast_gpu_dtype())] if torch.is_autocast_enabled() else []
        return [*on_cpu, *on_gpu]
    except (AttributeError, RuntimeError):
        return []
