"""One patch of nn.Module.__call__, with a table of the modules that are watched.

Nothing is put on a module, so copies, pickles and EMA carry nothing along; a module that is not in the table
passes on. The patch is made by the first watch and taken back after the last one. A program that patched
`__call__` meanwhile keeps its patch: ours only passes on from then.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

from torch import Tensor, nn

from lab.rooms.nan.watch.leaves import arguments_as_passed, as_passed
from lab.rooms.nan.watch.unseen_by_compile import is_compiling, leave_alone

Call = Callable[..., Any]  # (module, *args, **kwargs)
Make = Callable[[Call], Call]  # from the call inside to the call with a watch around it
Direct = tuple[Any, int, bool]  # a watch's lanes; the module's number, and whether it has no children

_table: dict[int, Call] = {}
_direct: dict[int, Direct] = {}  # modules that one watch sees: no second frame of Python around each call
_makers: dict[int, list[Make]] = {}
_directs: dict[Make, Direct] = {}
_held: dict[int, nn.Module] = {}  # a watched module must not die, or its id may become another's
_lock = threading.RLock()
_state: dict[str, Any] = {"strangers": None, "wrapped": False}


def _pass_on(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    return _state["original"](module, *args, **kwargs)


def _patched(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """What `nn.Module.__call__` is while a watch lasts. It runs for every call of every module."""
    if is_compiling():  # dynamo reads this as True: no watch in a program that it traces
        return self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
    key = id(self)
    direct = _direct.get(key)
    if direct is not None:
        lanes, module, leaf = direct
        lane = lanes.lane
        if not lane.mode:
            heads, values = lane.heads, lane.values
            if leaf and len(args) == 1 and not kwargs:  # nothing happens inside: call and return in one
                value = args[0]
                try:  # as_passed, without its frame: most modules take and give such a tensor
                    plain = type(value) is Tensor and not value._version
                except RuntimeError:  # made in inference mode
                    plain = False
                if not plain:
                    value = as_passed(value, "args[0]", True)
                try:
                    if _state["wrapped"] and self._compiled_call_impl is None:  # without torch's frame
                        output = passed = self._call_impl(*args)  # type: ignore[no-untyped-call]
                    else:
                        output = passed = _state["original"](self, *args)
                except BaseException:  # what it took was seen; a checkpoint ends its repetition so, too
                    heads.append((module, 1))
                    values.append(value)
                    raise
                try:
                    plain = type(output) is Tensor and not output._version
                except RuntimeError:
                    plain = False
                if not plain:
                    passed = as_passed(output, "output", False)
                heads.append(module)
                values += (value, passed)
            else:
                heads.append((module, len(args), *kwargs))
                values += arguments_as_passed(args, kwargs)
                output = _state["original"](self, *args, **kwargs)
                heads.append(~module)
                values.append(as_passed(output, "output", False))
            if len(values) > lane.weigh_at:
                lanes.weigh(lane)
            return output
    call = _table.get(key)
    if call is None and (strangers := _state["strangers"]) is not None:
        call = strangers(self)
    return (call or _state["original"])(self, *args, **kwargs)


def add(module: nn.Module, make: Make, direct: Direct) -> None:
    """From now on calls of `module` go through `make(inner)`, the newest outermost.

    direct: while this is the only watch, a call in a lane that only collects (mode 0) is noted at once.
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
    leave_alone()
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
        _state["wrapped"] = nn.Module.__call__ is getattr(nn.Module, "_wrapped_call_impl", None)
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


_CALL_CODE = nn.Module._call_impl.__code__


class Modules:
    """All that were ever part of the model, in the order in which they were met."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names: list[str] = []
        self.all: list[nn.Module] = []
        self._at_name: dict[str, int] = {}
        self._around: dict[int, dict[CodeType, list[tuple[str, nn.Module]]]] = {}
        self._numbers: dict[int, int] = {}  # id -> number
        self.meet()

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self._numbers

    def named(self, name: str) -> nn.Module | None:
        return self.all[self._at_name[name]] if name in self._at_name else None

    def number_of(self, name: str) -> int:
        """-1 if no module has that name."""
        return self._at_name.get(name, -1)

    def unmet(self) -> list[tuple[str, nn.Module]]:
        """Those that became part of the model since, by name."""
        return [(name, one) for name, one in self.model.named_modules() if one not in self]

    def meet(self) -> None:
        """Give those that are new numbers."""
        for name, module in self.unmet():
            self._numbers[id(module)] = self._at_name[name] = len(self.names)
            self.names.append(name)
            self.all.append(module)

    def have_moved(self) -> bool:
        return any(self.names[number] != name for name, number in self._places())

    def name_anew(self) -> None:
        """Give moved modules their present names; one that left the model keeps its own."""
        self._around.clear()
        for name, number in self._places():
            self.names[number], self._at_name[name] = name, number

    def _places(self) -> list[tuple[str, int]]:
        named = self.model.named_modules()
        return [(name, self._numbers[id(one)]) for name, one in named if one in self]

    def called_directly(self, number: int) -> str:
        """Name a module around this one that runs without having been called, and how; "" if none does.

        Only asked for the outermost call: what runs inside of one lies between borders that are seen.
        """
        around = self._around.get(number)
        if around is None:
            around = self._around[number] = self._forwards_around(number)
        frame = sys._getframe(1) if around or "torch._dynamo" in sys.modules else None
        while frame is not None:
            for name, module in around.get(frame.f_code, ()):
                if any(value is module for value in frame.f_locals.values()):
                    return f"the forward of {name or 'the model itself'} was called directly, not the module"
            if frame.f_code is _CALL_CODE and (name := self._compiled(frame.f_locals.get("self"))):
                return f"{name} was called as a compiled module that leaves some of its parts eager"
            frame = frame.f_back
        return ""

    def _compiled(self, caller: object) -> str:
        """The name of the module that an OptimizedModule wraps; "" if this is none, or wraps another."""
        inside = getattr(caller, "_orig_mod", None) if type(caller).__name__ == "OptimizedModule" else None
        number = self._numbers.get(id(inside)) if inside is not None else None
        return (self.names[number] or "the model itself") if number is not None else ""

    def _forwards_around(self, number: int) -> dict[CodeType, list[tuple[str, nn.Module]]]:
        """The modules that one lies in, by the code of their `forward`; a Sequential has none of its own."""
        path, modules = self.names[number].split("."), dict[CodeType, list[tuple[str, nn.Module]]]()
        for name in (".".join(path[:length]) for length in range(len(path))):
            module = self.named(name)
            code = getattr(getattr(type(module), "forward", None), "__code__", None)
            if module is not None and code is not None and type(module) is not nn.Sequential:
                modules.setdefault(code, []).append((name, module))
        return modules
