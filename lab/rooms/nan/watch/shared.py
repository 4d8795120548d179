"""Hooks of torch's that all watches of a process share.

Torch goes through its table of global hooks while other threads may add to it, which ends in "mutated during
iteration" in a program that did nothing wrong. So there is one hook for all watches; and it is taken back
only while no other thread could be going through the table. In between it does nothing.
"""

from __future__ import annotations

import functools
import gc
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

import torch

from lab.rooms.nan.watch.unseen_by_compile import not_traced, passes_on

Call = Callable[..., Any]


class Shared:
    """One hook that calls what each watch gave it. `register` is torch's; None where this torch lacks it."""

    def __init__(self, register: Callable[[Call], Any] | None) -> None:
        self._register, self._handle, self._lock = register, None, threading.RLock()
        self.exists = register is not None
        self._calls: tuple[Call, ...] = ()

    def add(self, call: Call) -> None:
        with self._lock:
            self._calls = (*self._calls, call)
            if self._handle is None and self._register is not None:
                self._handle = self._register(self.call)

    def remove(self, call: Call) -> None:
        with self._lock:
            self._calls = tuple(one for one in self._calls if one != call)
            if not self._calls and self._handle is not None and threading.active_count() == 1:
                self._handle.remove()
                self._handle = None

    @property
    def is_used(self) -> bool:
        return bool(self._calls)

    @not_traced
    @passes_on
    def call(self, *args: Any) -> None:
        for call in self._calls:
            call(*args)


class Backwards:
    """`torch.autograd.backward` with something before and after it, for several guards at once."""

    def __init__(self) -> None:
        self._around: tuple[tuple[Call, Call], ...] = ()
        self._lock, self._plain, self._patched = threading.RLock(), torch.autograd.backward, None
        self.count = 0  # calls so far, of any model

    def add(self, enter: Call, leave: Call) -> None:
        """`before(tensors)`, then `after(tensors, what before gave)`, after an exception too."""
        with self._lock:
            self._around = (*self._around, (enter, leave))
            if self._patched is None:
                self._plain = torch.autograd.backward
                self._patched = torch.autograd.backward = self._patch()

    def remove(self, enter: Call, leave: Call) -> None:
        """Take it out again, in any order. A patch that another program made over ours stays."""
        with self._lock:
            self._around = tuple(one for one in self._around if one != (enter, leave))
            if not self._around and torch.autograd.backward is self._patched:
                torch.autograd.backward, self._patched = self._plain, None

    def _patch(self) -> Any:
        plain = self._plain

        @functools.wraps(plain)
        @not_traced
        @passes_on
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            around, tokens = self._around, []
            self.count += 1
            for enter, _ in around:  # a comprehension would be another frame
                tokens.append(enter(tensors))
            try:
                return plain(tensors, *args, **kwargs)
            finally:
                for (_, leave), token in zip(reversed(around), reversed(tokens), strict=True):
                    leave(tensors, token)

        return backward


TAKES_OFF = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 5)  # whether this torch's dynamo does so


class Rehooked:
    """Optimizers that dynamo has taken torch's hooks off (before torch 2.5), with the same hooks around them.

    It does so when something is compiled for the first time, and for good. The classes are patched, and put
    back with the last guard. So are optimizers whose own `step` is a scheduler's that has kept the class's.
    """

    def __init__(self) -> None:
        self._looked, self._plain = False, dict[type[Any], Call]()
        self._scheduled: list[tuple[Any, Call, Call]] = []  # optimizer, the scheduler's step, ours

    def put_on(self) -> None:
        """Find what has lost its hooks, once dynamo has done so."""
        if self._looked or not TAKES_OFF or "torch._dynamo.eval_frame" not in sys.modules:
            return
        patcher = getattr(sys.modules["torch._dynamo.eval_frame"], "TorchPatcher", None)
        info = getattr(getattr(patcher, "patch", None), "cache_info", None)
        if info is not None and not info().currsize:
            return
        self._looked = True
        for kind in _kinds_of(torch.optim.Optimizer):
            step = vars(kind).get("step")
            if getattr(step, "hooked", False) and getattr(step, "__code__", None) is not _HOOK_CODE:
                self._plain[kind] = cast(Call, step)
                setattr(kind, "step", _surrounded(cast(Call, step)))  # noqa: B010 - for mypy, too
        for optimizer in (candidate for candidate in gc.get_objects() if type(candidate) in self._plain):
            scheduled = vars(optimizer).get("step")
            if getattr(scheduled, "__wrapped__", None) is self._plain[type(optimizer)]:
                patched = _surrounded_own(optimizer, scheduled)
                self._scheduled.append((optimizer, scheduled, patched))
                optimizer.step = patched

    def take_off(self) -> None:
        """Put them back if no guard is left."""
        if before_update.is_used:
            return
        for kind, step in self._plain.items():
            setattr(kind, "step", step)  # noqa: B010
        for optimizer, scheduled, patched in self._scheduled:
            if vars(optimizer).get("step") is patched:
                optimizer.step = scheduled
        self._plain.clear()
        self._scheduled.clear()
        self._looked = False


def _kinds_of(base: type[Any]) -> list[type[Any]]:
    return [kind for one in base.__subclasses__() for kind in (one, *_kinds_of(one))]


def _surrounded(plain: Call) -> Call:
    @functools.wraps(plain)
    @passes_on
    def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if type(optimizer).step is not step:  # called by a subclass's own step, which has hooks of its own
            return plain(optimizer, *args, **kwargs)
        before_update.call(optimizer, args, kwargs)
        result = plain(optimizer, *args, **kwargs)
        after_update.call(optimizer, args, kwargs)
        return result

    return step


def _surrounded_own(optimizer: Any, scheduled_step: Call) -> Call:
    """For one optimizer; torch copies and pickles no optimizer's `step`."""

    @functools.wraps(scheduled_step)
    @passes_on
    def step(*args: Any, **kwargs: Any) -> Any:
        before_update.call(optimizer, args, kwargs)
        result = scheduled_step(*args, **kwargs)
        after_update.call(optimizer, args, kwargs)
        return result

    return step


def _hook_code() -> Any:
    """The code of what torch puts around an optimizer's step to run its hooks; None where there are none."""
    around = getattr(torch.optim.Optimizer, "profile_hook_step", None)
    return getattr(around(lambda self: None), "__code__", None) if around is not None else None


def _torchs(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name, None)


# Around every optimizer's step; parts that become part of a module. Since torch 2.0.
before_update = Shared(_torchs("torch.optim.optimizer", "register_optimizer_step_pre_hook"))
after_update = Shared(_torchs("torch.optim.optimizer", "register_optimizer_step_post_hook"))
new_module = Shared(_torchs("torch.nn.modules.module", "register_module_module_registration_hook"))
new_parameter = Shared(_torchs("torch.nn.modules.module", "register_module_parameter_registration_hook"))
backwards = Backwards()
_HOOK_CODE = _hook_code()
rehooked = Rehooked()


class Surrounded:
    """The `step` of an optimizer class with calls before and after it.

    The class is patched, not the optimizer, so that copies and pickles carry nothing along.
    """

    def __init__(self, kind: type[Any], enter: Callable[[Any], None], leave: Callable[[Any], None]) -> None:
        self._kind, self._plain = kind, kind.step
        self.running = 0  # steps that have begun and not ended, with an exception either
        plain = self._plain

        @functools.wraps(plain)
        @passes_on
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            enter(optimizer)
            self.running += 1
            try:
                result = plain(optimizer, *args, **kwargs)
            finally:
                self.running -= 1
            leave(optimizer)
            return result

        self._patched = kind.step = step

    def remove(self) -> None:
        """Put the class's own step back, unless another patch lies over this one."""
        if self._kind.step is self._patched:
            self._kind.step = self._plain
