"""Hooks and patches of torch's that all watches of a process share.

Torch goes through its table of global hooks while other threads may add to it, which ends in "mutated during
iteration" in a program that did nothing wrong. So there is one hook for all watches; and it is taken back
only while no other thread could be going through the table. In between it does nothing.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lab.rooms.nan.watch.unseen_by_compile import hidden, not_traced, passes_on

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


def _torchs(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name, None)


# Around every optimizer's step; parts that become part of a module. Since torch 2.0.
before_update = Shared(_torchs("torch.optim.optimizer", "register_optimizer_step_pre_hook"))
after_update = Shared(_torchs("torch.optim.optimizer", "register_optimizer_step_post_hook"))
new_module = Shared(_torchs("torch.nn.modules.module", "register_module_module_registration_hook"))
new_parameter = Shared(_torchs("torch.nn.modules.module", "register_module_parameter_registration_hook"))
backwards = Backwards()


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


Listener = Callable[[Tensor, Any], None]  # what was asked about, and its value where that is known
OWN = "lab.rooms.nan.watch."  # whose own calls are not the program's
FUNCTIONS = ("isnan", "isinf", "isfinite")
METHODS = ("item", "detach", "tolist", "__float__", "isnan", "isinf", "isfinite")
_register_builtin = getattr(torch.jit._builtins, "_register_builtin", lambda function, name: None)
_is_compiling = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", None) or (lambda: False)


class Asked:
    """Scalars that the program asks about before backward: `loss.item()`, `torch.isnan(loss)`, `float(loss)`.

    A program may throw a bad loss away and never call backward on it. `torch.isnan`, `isinf` and `isfinite`,
    and the methods of Tensor by which a number leaves the graph, are surrounded while a guard lasts.
    """

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._lock, self._busy = threading.RLock(), threading.local()
        # Made once, because torch.jit knows builtin functions by their ids.
        # Owner, name, plain function, whether it is the owner's own or inherited, patch.
        self._patches: list[tuple[Any, str, Any, bool, Any]] = []
        self._is_on = False

    def add(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = (*self._listeners, listener)
            if self._is_on:
                return
            self._is_on = True
            if not self._patches:
                self._make()
            for owner, name, _, _, patch in self._patches:
                setattr(owner, name, patch)

    def remove(self, listener: Listener) -> None:
        """A patch that another program made over ours stays."""
        with self._lock:
            self._listeners = tuple(held for held in self._listeners if held != listener)
            if self._listeners or not self._is_on:
                return
            self._is_on = False
            for owner, name, plain, is_own, patch in self._patches:
                if vars(owner).get(name) is not patch:
                    continue
                if is_own:
                    setattr(owner, name, plain)
                else:  # what Tensor has inherited shows again
                    delattr(owner, name)

    def _make(self) -> None:
        for owner, names in ((torch, FUNCTIONS), (Tensor, METHODS)):
            for name in names:
                plain, is_own = getattr(owner, name), name in vars(owner)
                patch = self._around(plain)
                if owner is torch:
                    _register_builtin(patch, f"aten::{name}")
                self._patches.append((owner, name, plain, is_own, patch))

    def _around(self, plain: Any) -> Any:
        @functools.wraps(plain)
        @passes_on
        def asked(*args: Any, **kwargs: Any) -> Any:
            answer = plain(*args, **kwargs)
            if _is_compiling():
                return answer
            tensor = args[0] if args else None
            if type(tensor) is not Tensor or tensor.grad_fn is None or tensor.numel() != 1:
                return answer
            if not sys._getframe(1).f_globals.get("__name__", "").startswith(OWN):
                self._tell(tensor, answer if type(answer) is float else None)
            return answer

        return asked

    @hidden
    def _tell(self, tensor: Tensor, value: float | None) -> None:
        if getattr(self._busy, "on", False):
            return
        self._busy.on = True
        try:
            for listener in self._listeners:
                listener(tensor, value)
        finally:
            self._busy.on = False


asked = Asked()
