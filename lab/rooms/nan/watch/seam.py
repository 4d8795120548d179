"""One patch of nn.Module.__call__, with a table of the modules that somebody watches.

Nothing is put on a module, so copies, pickles and EMA carry nothing along; a module that is not in the table
passes on. The patch is made by the first watch and taken back after the last one. A program that patched
`__call__` meanwhile keeps its patch: ours only passes on from then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import torch
from torch import nn

from lab.rooms.nan.watch.leaves import args_as_passed, as_passed, kwargs_as_passed
from lab.rooms.nan.watch.native.calls import Calls, ordinary, seam_calls
from lab.rooms.nan.watch.native.find import calls_library
from lab.rooms.nan.watch.unseen_by_compile import passes_on

Call = Callable[..., Any]  # (module, *args, **kwargs)
Make = Callable[[Call], Call]  # from the call inside to the call with a watch around it
Direct = tuple[Any, int, int, int, bool]  # a watch's lanes; the module's number as events have it; see `add`

_is_compiling = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", None) or (lambda: False)
_table: dict[int, Call] = {}
# Modules that one watch sees: what it takes to see a call, without another frame of Python around each. The
# last item is the module's class, if its `forward` may be called straight.
_direct: dict[int, tuple[Any, int, int, int, bool, type[nn.Module] | None]] = {}
_makers: dict[int, list[Make]] = {}
_directs: dict[Make, Direct] = {}
_held: dict[int, nn.Module] = {}  # a watched module must not die, or its id may become another's
_lock = threading.RLock()
_state: dict[str, Any] = {"strangers": None, "calls": None}


@passes_on
def _pass_on(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    return _state["original"](module, *args, **kwargs)


@passes_on
def _in_python(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """What `nn.Module.__call__` is while a watch lasts, where there is no C."""
    if _is_compiling():  # dynamo reads this as True: a program that it traces holds no watch
        return self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
    key = id(self)
    direct = _direct.get(key)
    if direct is not None:
        lanes, at, gone, passed, leaf, _ = direct
        lane = lanes.lane
        if not lane.mode:
            events = lane.events
            if leaf and len(args) == 1 and not kwargs:  # nothing happens inside: call and return in one
                given = as_passed(args[0])
                try:
                    output = _state["original"](self, *args)
                except BaseException:  # what it took was seen; a checkpoint ends its repetition so, too
                    events += (at, (given,), kwargs)
                    raise
                events += (passed, given, as_passed(output))
            else:
                events += (at, args_as_passed(args), kwargs_as_passed(kwargs))
                output = _state["original"](self, *args, **kwargs)
                events += (gone, as_passed(output), None)
            if len(events) > lane.weigh_at:
                lanes.weigh(lane)
            return output
    seen = _table.get(key)
    if seen is not None:
        return seen(self, *args, **kwargs)
    if (strangers := _state["strangers"]) is not None and (seen := strangers(self)) is not None:
        return seen(self, *args, **kwargs)
    return _state["original"](self, *args, **kwargs)


@passes_on
def _patched(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """What it is where there is C (`calls.c`), which since Python 3.12 is called without this frame."""
    if _is_compiling():
        return self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
    return _state["calls"].called(self, *args, **kwargs)


_OWN = (_in_python, _patched)


def add(module: nn.Module, make: Make, direct: Direct | None = None) -> None:
    """From now on calls of `module` go through `make(inner)`, the newest outermost.

    `direct`: while this is the only one, a call in a lane that notes nothing (mode 0) becomes events at once:
    (the watch's lanes; module, return, and both in one as events have them; whether it has no children).
    """
    with _lock:
        if not _makers and _state["strangers"] is None:
            _open()
        _makers.setdefault(id(module), []).append(make)
        if direct is not None:
            _directs[make] = direct
        _held[id(module)] = module
        _rebuild(id(module))


def remove(module: nn.Module, make: Make) -> None:
    """Take it out again, in any order; the last one takes the patch back."""
    with _lock:
        left = _makers.get(id(module), [])
        left[:] = [one for one in left if one is not make]
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
    return nn.Module.__call__ in _OWN


@passes_on
def collects(lanes: Any, lane: Any) -> None:
    """A forward begins in this thread's lane that only collects: its calls may take the short way."""
    if nn.Module.__call__ is not _in_python and (calls := _state["calls"]) is not None:
        calls.arm(lanes, lane, lane.events, lane.weigh_at)
        lane.disarm = calls.disarm


def usual(lanes: Any, own: tuple[Any, ...] | None) -> None:
    """What forwards in these lanes take that are as those before; None at their end."""
    if (calls := _state["calls"]) is not None:
        calls.usual(lanes, own)


def _open() -> None:
    if nn.Module.__call__ not in _OWN:
        _state["original"] = nn.Module.__call__
        calls = _calls()
        if calls is not None:
            calls.begin(_state["original"])
        setattr(nn.Module, "__call__", _in_python if calls is None else _patched)  # noqa: B010 - for mypy


def _calls() -> Calls | None:
    if calls_library() is None:  # none, or the plain form is asked for
        return None
    if _state["calls"] is None:
        _state["calls"] = seam_calls(_direct, _in_python, cast(FunctionType, _patched))
    found: Calls | None = _state["calls"]
    return found


def _close_if_unused() -> None:
    if not _makers and _state["strangers"] is None and nn.Module.__call__ in _OWN:
        setattr(nn.Module, "__call__", _state["original"])  # noqa: B010


def _rebuild(key: int) -> None:
    if not _makers.get(key):
        for table in (_table, _makers, _held, _direct):
            table.pop(key, None)
    else:
        call: Call = _state["original"] if len(_makers[key]) == 1 else _pass_on
        for make in _makers[key]:
            call = make(call)
        _table[key] = call
        if len(_makers[key]) == 1 and (direct := _directs.get(_makers[key][0])) is not None:
            _direct[key] = (*direct, ordinary(_held[key]))
        else:
            _direct.pop(key, None)
    if (calls := _state["calls"]) is not None:
        calls.changed()
