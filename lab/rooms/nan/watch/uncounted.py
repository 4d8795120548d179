"""Whether a model's own code may write to tensors in a way that torch does not count: by `.data` or numpy.

What such a write wipes inside a forward is gone when the forward ends, and no version tells of it. The code
is read, not run: the forward of a class, and the methods and functions that it names, outside of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

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
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)
