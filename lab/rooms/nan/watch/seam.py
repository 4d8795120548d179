"""One patch of nn.Module.__call__, with a table of the modules that are watched.

Nothing is put on a module, so copies, pickles and EMA carry nothing along; a module that is not in the table
passes on. The patch is made by the first watch and taken back after the last one. A program that patched
`__call__` meanwhile keeps its patch: ours only passes on from then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lab.rooms.nan.watch.leaves import STAYS, args_as_passed, as_passed, kwargs_as_passed
from lab.rooms.nan.watch.unseen_by_compile import passes_on

Call = Callable[..., Any]  # (module, *args, **kwargs)
Make = Callable[[Call], Call]  # from the call inside to the call with a watch around it
Direct = tuple[Any, int, int, int, bool]  # a watch's lanes; the module's number as events have it; see `add`

_is_compiling = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", None) or (lambda: False)
_table: dict[int, Call] = {}
_direct: dict[int, Direct] = {}  # modules that one watch sees: no second frame of Python around each call
_makers: dict[int, list[Make]] = {}
_directs: dict[Make, Direct] = {}
_held: dict[int, nn.Module] = {}  # a watched module must not die, or its id may become another's
_lock = threading.RLock()
_state: dict[str, Any] = {"strangers": None}


@passes_on
def _pass_on(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    return _state["original"](module, *args, **kwargs)


@passes_on
def _patched(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """What `nn.Module.__call__` is while a watch lasts. It runs for every call of every module."""
    if _is_compiling():  # dynamo reads this as True: a program that it traces holds no watch
        return self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
    key = id(self)
    direct = _direct.get(key)
    if direct is not None:
        lanes, module, returned, passed, leaf = direct
        lane = lanes.lane
        if not lane.mode:
            events = lane.events
            if leaf and len(args) == 1 and not kwargs:  # nothing happens inside: call and return in one
                value = args[0]
                if id(type(value)) not in STAYS:
                    value = as_passed(value)
                try:
                    output = _state["original"](self, *args)
                except BaseException:  # what it took was seen; a checkpoint ends its repetition so, too
                    events += (module, (value,), kwargs)
                    raise
                events += (passed, value, output if id(type(output)) in STAYS else as_passed(output))
            else:
                events += (module, args_as_passed(args), kwargs_as_passed(kwargs))
                output = _state["original"](self, *args, **kwargs)
                events += (returned, output if id(type(output)) in STAYS else as_passed(output), None)
            if len(events) > lane.weigh_at:
                lanes.weigh(lane)
            return output
    call = _table.get(key)
    if call is None and (strangers := _state["strangers"]) is not None:
        call = strangers(self)
    return (call or _state["original"])(self, *args, **kwargs)


def add(module: nn.Module, make: Make, direct: Direct) -> None:
    """From now on calls of `module` go through `make(inner)`, the newest outermost.

    `direct`: while this is the only one, a call in a lane that notes nothing (mode 0) becomes events at once:
    (the watch's lanes; module, return, and both in one as events have them; whether it has no children).
    """
    with _lock:
        if not _makers and _state["strangers"] is None:
            _open()
        _makers.setdefault(id(module), []).append(make)
        _directs[make] = direct
        _held[id(module)] = module
        _rebuild(id(module))


def remove(module: nn.Module, make: Make) -> None:
    """Take it out again, in any order; the last one takes the patch back."""
    with _lock:
        makers = _makers.get(id(module), [])
        makers[:] = [maker for maker in makers if maker is not make]
        _directs.pop(make, None)
        _rebuild(id(module))
        _close_if_unused()


def meet_strangers(meet: Callable[[nn.Module], Call | None] | None) -> None:
    """Ask `meet` about every module that is not in the table (None: no longer).

    It may `add` the module and return its call.
    """
    with _lock:
        if meet is not None and not _makers and _state["strangers"] is None:
            _open()
        _state["strangers"] = meet
        _close_if_unused()


def known(module: nn.Module) -> Call | None:
    return _table.get(id(module))


def is_open() -> bool:
    return nn.Module.__call__ is _patched


def _open() -> None:
    if not is_open():
        _state["original"] = nn.Module.__call__
        setattr(nn.Module, "__call__", _patched)  # noqa: B010 - for mypy


def _close_if_unused() -> None:
    if not _makers and _state["strangers"] is None and is_open():
        setattr(nn.Module, "__call__", _state["original"])  # noqa: B010


def _rebuild(key: int) -> None:
    if not _makers.get(key):
        for table in (_table, _makers, _held, _direct):
            table.pop(key, None)
        return
    call: Call = _state["original"] if len(_makers[key]) == 1 else _pass_on
    for make in _makers[key]:
        call = make(call)
    _table[key] = call
    if len(_makers[key]) == 1:
        _direct[key] = _directs[_makers[key][0]]
    else:
        _direct.pop(key, None)
