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

from lab.rooms.nan.watch.unseen_by_compile import OWN, hidden, is_compiling, not_traced

Call = Callable[..., Any]


class Listeners:
    """What watches want to be called: `begin` comes with each of them, `end` when none is left."""

    def __init__(self) -> None:
        self._calls: tuple[Any, ...] = ()
        self._lock = threading.RLock()

    def add(self, *call: Any) -> None:
        with self._lock:
            self.begin()
            self._calls = (*self._calls, call if call[1:] else call[0])

    def remove(self, *call: Any) -> None:
        """Take it out again, in any order."""
        with self._lock:
            gone = call if call[1:] else call[0]
            self._calls = tuple(held for held in self._calls if held != gone)
            if not self._calls:
                self.end()

    def begin(self) -> None: ...

    def end(self) -> None: ...


class Shared(Listeners):
    """One hook that calls what each watch gave it. `register` is torch's; None where this torch lacks it."""

    def __init__(self, register: Callable[[Call], Any] | None) -> None:
        super().__init__()
        self._register, self._handle, self.exists = register, None, register is not None

    def begin(self) -> None:
        if self._handle is None and self._register is not None:
            self._handle = self._register(self.call)

    def end(self) -> None:
        if self._handle is not None and threading.active_count() == 1:
            self._handle.remove()
            self._handle = None

    @not_traced
    def call(self, *args: Any) -> None:
        for call in self._calls:
            call(*args)


class Patch:
    """A function of torch's, replaced by `make(the function)` while it is put."""

    def __init__(self, owner: Any, name: str, make: Callable[[Call], Call]) -> None:
        self._owner, self._name, self._is_own = owner, name, name in vars(owner)
        self._plain = getattr(owner, name)
        self.patch = make(self._plain)

    def put(self) -> Patch:
        setattr(self._owner, self._name, self.patch)
        return self

    def remove(self) -> None:
        """Take it back; a patch that another program made over ours stays."""
        if vars(self._owner).get(self._name) is not self.patch:
            return
        if self._is_own:
            setattr(self._owner, self._name, self._plain)
        else:  # what the class has inherited shows again
            delattr(self._owner, self._name)


def surrounded(plain: Call, enter: Call, leave: Call | None = None) -> Call:
    """The function with `enter(*args)` before and `leave(what that gave, whether it returned)` after it."""

    @functools.wraps(plain)
    @not_traced
    def around(*args: Any, **kwargs: Any) -> Any:
        token, returned = enter(*args, **kwargs), False
        try:
            result = plain(*args, **kwargs)
            returned = True
        finally:
            if leave is not None:
                leave(token, returned)
        return result

    return around


class AfterUpdates(Shared):
    """The hook after updates; it surrounds the steps of optimizers around which torch has no hooks.

    As before torch 2.0. In 2.2, dynamo takes them off all of torch's optimizers, for good, when it first
    compiles. The class is patched, not the optimizer, so that copies and pickles carry nothing along.
    """

    running = 0  # surrounded steps that have begun and not ended, with an exception either

    def __init__(self, register: Callable[[Call], Any] | None, before: Shared) -> None:
        super().__init__(register)
        self._before, self._patches = before, dict[type[Any], Patch]()

    def begin(self) -> None:
        super().begin()
        self.hook_again()

    def end(self) -> None:
        super().end()
        while self._patches:
            self._patches.popitem()[1].remove()

    def hook_again(self) -> None:
        if "torch._dynamo" not in sys.modules or not self.exists:
            return
        for kind in torch.optim.Optimizer.__subclasses__():
            step = vars(kind).get("step")
            if getattr(step, "hooked", False) and not _has_hooks(step):
                self.surround(kind)

    def surround(self, kind: type[Any]) -> None:
        if kind not in self._patches:
            make = functools.partial(surrounded, enter=self._begin, leave=self._end)
            self._patches[kind] = Patch(kind, "step", make).put()

    def _begin(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self._before.call(optimizer, args, kwargs)
        self.running += 1
        return optimizer

    def _end(self, optimizer: Any, returned: bool) -> None:
        self.running -= 1
        if returned:
            self.call(optimizer, (), {})


def _has_hooks(step: Any) -> bool:
    """Whether torch's wrapper is around a step; for LBFGS, dynamo puts one of its own around that."""
    while step is not None and getattr(getattr(step, "__code__", None), "co_name", "") != "wrapper":
        step = getattr(step, "__wrapped__", None)
    return step is not None


class Backwards(Listeners):
    """`torch.autograd.backward` with something before and after it, for several guards at once.

    Each adds `enter(tensors)` and `leave(tensors, what enter gave)`, which comes after an exception, too.
    """

    count = 0  # calls so far, of any model
    _patch: Patch | None = None

    def begin(self) -> None:
        if self._patch is None:
            make = functools.partial(surrounded, enter=self._enter, leave=self._leave)
            self._patch = Patch(torch.autograd, "backward", make).put()

    def end(self) -> None:
        if self._patch is not None:
            self._patch.remove()
            self._patch = None

    def _enter(self, tensors: Any, *_: Any, **__: Any) -> tuple[Any, list[tuple[Call, Any]]]:
        after_update.hook_again()  # the program may have compiled meanwhile
        self.count += 1
        return tensors, [(leave, enter(tensors)) for enter, leave in self._calls]

    def _leave(self, backward: tuple[Any, list[tuple[Call, Any]]], _: bool) -> None:
        tensors, tokens = backward
        for leave, token in reversed(tokens):
            leave(tensors, token)


def _torchs(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name, None)


# Around every optimizer's step; parts that become part of a module. Since torch 2.0.
before_update = Shared(_torchs("torch.optim.optimizer", "register_optimizer_step_pre_hook"))
after_update = AfterUpdates(
    _torchs("torch.optim.optimizer", "register_optimizer_step_post_hook"), before_update
)
new_module = Shared(_torchs("torch.nn.modules.module", "register_module_module_registration_hook"))
new_parameter = Shared(_torchs("torch.nn.modules.module", "register_module_parameter_registration_hook"))
backwards = Backwards()


FUNCTIONS = ("isnan", "isinf", "isfinite")
METHODS = ("item", "detach", "tolist", "__float__", "isnan", "isinf", "isfinite")
_register_builtin = getattr(torch.jit._builtins, "_register_builtin", lambda function, name: None)


class Asked(Listeners):
    """Scalars that the program asks about before backward: `loss.item()`, `torch.isnan(loss)`, `float(loss)`.

    A program may throw a bad loss away and never call backward on it. `torch.isnan`, `isinf` and `isfinite`,
    and the methods of Tensor by which a number leaves the graph, are surrounded while a guard lasts. It adds
    `look(tensor, its value where that is known)`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._busy = threading.local()
        self._patches: list[Patch] = []  # made once, because torch.jit knows builtin functions by their ids

    def begin(self) -> None:
        if not self._patches:
            for owner, names in ((torch, FUNCTIONS), (Tensor, METHODS)):
                self._patches += [Patch(owner, name, self._around) for name in names]
            for name, patch in zip(FUNCTIONS, self._patches, strict=False):
                _register_builtin(patch.patch, f"aten::{name}")
        for patch in self._patches if not self._calls else ():
            patch.put()

    def end(self) -> None:
        for patch in self._patches:
            patch.remove()

    def _around(self, plain: Any) -> Any:
        @functools.wraps(plain)
        def asked(*args: Any, **kwargs: Any) -> Any:
            answer = plain(*args, **kwargs)
            if is_compiling():
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
            for look in self._calls:
                look(tensor, value)
        finally:
            self._busy.on = False


asked = Asked()
