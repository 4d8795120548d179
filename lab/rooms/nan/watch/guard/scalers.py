"""`scale`, `step` and `update` of the process's gradient scalers, of which every guard is told.

What a scaler has left out is known where its `step` returns, and no later: `update` throws it away, at any
time, for several optimizers at once, and adds what it found of one to that of another. The classes are
patched, not the scalers, so that copies and pickles carry nothing along.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import FunctionType
from typing import Any, Protocol

import torch

from lab.rooms.nan.watch.unseen_by_compile import hidden, not_traced, passes_on

Call = Callable[..., Any]


class Listener(Protocol):
    """What is told of scalers."""

    def scaler_scales(self, scaler: Any) -> None:
        """It is about to scale a loss."""

    def scaler_begins(self, scaler: Any, optimizer: Any) -> bool:
        """Its `step` of this optimizer begins; whether that is one of the listener's."""

    def scaler_ended(self, scaler: Any, optimizer: Any, belongs: bool, returned: bool) -> None:
        """It has returned, or raised; `ours` is what the listener said."""

    def scaler_updates(self, scaler: Any) -> None:
        """Its `update` begins, which forgets what it found."""


class Scalers:
    """The patches, there as long as somebody listens."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._lock, self._met = threading.RLock(), set[type[Any]]()
        self._patches: list[tuple[type[Any], str, Call, Call]] = []  # class, name, its own function, ours

    def add(self, listener: Listener, scaler: Any) -> None:
        """It is told from now on; `scaler` may be of a class that is none of torch's."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
            self._meet([*_kinds(), *([] if scaler is None else [type(scaler)])])

    def remove(self, listener: Listener) -> None:
        """A patch that another program made over ours stays."""
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if one is not listener)
            if self._listeners:
                return
            for kind, name, plain, patch in self._patches:
                if vars(kind).get(name) is patch:
                    setattr(kind, name, plain)
            self._patches.clear()
            self._met.clear()

    def _meet(self, kinds: Iterable[type[Any]]) -> None:
        make = {"scale": self._scale, "step": self._step, "update": self._update}
        for kind in (
            base for scaler_class in kinds for base in scaler_class.__mro__ if base not in self._met
        ):
            self._met.add(kind)
            for name, patch in make.items():
                plain = vars(kind).get(name)
                if isinstance(plain, FunctionType):
                    patched = patch(plain)
                    self._patches.append((kind, name, plain, patched))
                    setattr(kind, name, patched)

    def _scale(self, plain: Call) -> Call:
        @functools.wraps(plain)
        @passes_on
        def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if not _is_compiling():
                self._scales(scaler)
            return plain(scaler, *args, **kwargs)

        return scale

    def _step(self, plain: Call) -> Call:
        @functools.wraps(plain)
        @not_traced
        @passes_on
        def step(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            optimizer, returned = args[0] if args else kwargs.get("optimizer"), False
            belonging = self._begins(scaler, optimizer)
            try:
                result = plain(scaler, *args, **kwargs)
                returned = True
            finally:
                self._ended(belonging, scaler, optimizer, returned)
            return result

        return step

    def _update(self, plain: Call) -> Call:
        @functools.wraps(plain)
        @not_traced
        @passes_on
        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._updates(scaler)
            return plain(scaler, *args, **kwargs)

        return update

    @hidden
    def _scales(self, scaler: Any) -> None:
        for listener in self._listeners:
            listener.scaler_scales(scaler)

    @hidden
    def _begins(self, scaler: Any, optimizer: Any) -> list[tuple[Listener, bool]]:
        if self._listeners and type(scaler) not in self._met:  # its class came after the guard
            with self._lock:
                self._meet([type(scaler)])
        return [(listener, listener.scaler_begins(scaler, optimizer)) for listener in self._listeners]

    @hidden
    def _ended(
        self, belonging: list[tuple[Listener, bool]], scaler: Any, optimizer: Any, returned: bool
    ) -> None:
        with ExitStack() as stack:  # one that raises keeps it from no other
            for listener, belongs in belonging:
                stack.callback(listener.scaler_ended, scaler, optimizer, belongs, returned)

    @hidden
    def _updates(self, scaler: Any) -> None:
        for listener in self._listeners:
            listener.scaler_updates(scaler)


def _kinds() -> list[type[Any]]:
    """The classes of torch's scalers, and all that inherit from them."""
    kinds = [getattr(getattr(torch, "amp", None), "GradScaler", None), torch.cuda.amp.GradScaler]
    classes: list[type[Any]] = [kind for kind in kinds if isinstance(kind, type)]
    for kind in classes:
        classes += kind.__subclasses__()
    return classes


_is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
scalers = Scalers()
