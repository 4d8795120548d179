"""Scalars that the program asks about before backward: `loss.item()`, `torch.isnan(loss)`, `float(loss)`.

A program may throw a bad loss away and never call backward on it. Where it asks about a number that still has
a graph, every guard is told. `torch.isnan`, `isinf` and `isfinite`, and the methods of Tensor by which a
number leaves the graph, are surrounded while a guard lasts; nothing is put on a tensor.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on

Listener = Callable[[Tensor, Any], None]  # what was asked about, and its value where that is known
OWN = "lab.rooms.nan.watch."  # whose own calls are no questions of the program
FUNCTIONS = ("isnan", "isinf", "isfinite")
METHODS = ("item", "detach", "tolist", "__float__", "isnan", "isinf", "isfinite")
_register_builtin = getattr(torch.jit._builtins, "_register_builtin", lambda function, name: None)
_is_compiling = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", None) or (lambda: False)


class Asked:
    """The patches, there as long as anybody listens."""

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
