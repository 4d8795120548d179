"""The modules of a watched model: events know each by its number, results by the name that it has now."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from lab.rooms.nan.watch.roles import IN, OUT

_CALL_CODE = nn.Module._call_impl.__code__
Label = tuple[int, int, str]  # module, side, leaf


class Modules:
    """All that were ever part of the model, in the order in which they were met."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names: list[str] = []
        self.all: list[nn.Module] = []
        self.plain: list[tuple[Label, Label]] = []  # for a module's first argument and its output
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
            number = self._numbers[id(module)] = self._at_name[name] = len(self.names)
            self.names.append(name)
            self.all.append(module)
            self.plain.append(((number, IN, "args[0]"), (number, OUT, "output")))

    def have_moved(self) -> bool:
        return any(self.names[number] != name for name, number in self._places())

    def name_anew(self) -> None:
        """Those that have moved get the names of now; one that is no longer there keeps its own."""
        self._around.clear()
        for name, number in self._places():
            self.names[number], self._at_name[name] = name, number

    def _places(self) -> list[tuple[str, int]]:
        named = self.model.named_modules()
        return [(name, self._numbers[id(one)]) for name, one in named if one in self]

    def called_directly(self, number: int) -> str:
        """Which module around this one runs though nobody called it, and how; "" if none does.

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


WAYS = frozenset(("data", "numpy"))
NOT_LOOKED_INTO = ("torch", "builtins", "typing", "math", "numpy")
MOST_FUNCTIONS = 200  # of one class


def may_write_uncounted(kind: type[nn.Module]) -> bool:
    """Whether the forward of this class, or what it calls, names one of these ways."""
    todo, met = [getattr(kind, "forward", None)], set[Any]()
    while todo and len(met) < MOST_FUNCTIONS:
        function = todo.pop()
        if not isinstance(function, FunctionType) or function in met or not _is_own(function):
            continue
        met.add(function)
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        if names & WAYS:
            return True
        todo += [getattr(kind, name, None) for name in names]
        todo += [function.__globals__.get(name) for name in names]
        todo += [getattr(function, "__wrapped__", None)]  # the forward inside of a decorator
    return False


def _is_own(function: FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] not in NOT_LOOKED_INTO


def _codes(code: CodeType) -> Iterator[CodeType]:
    """This code and what is defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
