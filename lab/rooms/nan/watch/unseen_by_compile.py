"""Keep torch.compile away from the watch's own code.

While a compiled function runs, dynamo tries to compile every Python frame below it, a watch's too: it would
turn counts into graphs and compile anew for every length of a list. `leave_alone` marks all code of the
watch, of which some only calls on, so that what it calls is still compiled; `hidden` runs the watch's own
work, and what that calls, with dynamo off.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar

import torch

OWN = __name__.rpartition(".")[0] + "."
F = TypeVar("F", bound=Callable[..., Any])
_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_set_eval_frame = getattr(_eval_frame, "set_eval_frame", None)
is_compiling = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", None) or (lambda: False)
_marked: set[str] = set()  # modules


def _skips() -> Callable[[CodeType], None]:
    """What makes dynamo leave frames of this code alone, and none below them: the name differs by torch."""
    if hasattr(_eval_frame, "set_code_exec_strategy"):
        action = _eval_frame._FrameAction
        strategy = _eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
        return lambda code: _eval_frame.set_code_exec_strategy(code, strategy)
    return getattr(_eval_frame, "skip_code", lambda code: None)


_skip_code = _skips()


def leave_alone() -> None:
    """Mark the code of the watch's modules that are loaded and not marked yet."""
    for name in [name for name in sys.modules if name.startswith(OWN) and name not in _marked]:
        _marked.add(name)
        for value in [*vars(sys.modules[name]).values()]:
            _mark(value)


def _mark(value: Any) -> None:
    if isinstance(value, CodeType):
        _skip_code(value)
        for constant in value.co_consts:  # functions inside of functions
            _mark(constant)
    elif isinstance(value, FunctionType) and value.__module__.startswith(OWN):
        _mark(value.__code__)
        _mark(getattr(value, "__wrapped__", None))
    elif isinstance(value, property):
        _mark(value.fget)
    elif isinstance(value, type) and value.__module__.startswith(OWN):
        for held in [*vars(value).values()]:
            _mark(held)


def hidden(function: F) -> F:
    """The function with dynamo off while it runs."""
    if _set_eval_frame is None:
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        callback = _set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            _set_eval_frame(callback)

    return not_traced(run)  # type: ignore[return-value]


def not_traced(function: F) -> F:
    """Mark a function at which dynamo breaks a graph, as at one given to `torch.compiler.disable`.

    Else it takes the function's code into the graph of its caller, and warns of C that it cannot trace.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function
