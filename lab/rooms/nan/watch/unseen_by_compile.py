"""Keep torch.compile away from the watch's own code.

While a compiled function runs, dynamo tries to compile every Python frame below it, a watch's too: it would
turn counts into graphs and compile anew for every length of a list. `passes_on` marks code that only calls
on, so that what it calls is still compiled; `hidden` runs the watch's own work with dynamo off.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])
_eval_frame = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_skip_code = getattr(_eval_frame, "skip_code", None)
_set_eval_frame = getattr(_eval_frame, "set_eval_frame", None)


def passes_on(function: F) -> F:
    """Mark a function whose frame dynamo must leave alone."""
    if _skip_code is not None:
        _skip_code(function.__code__)
    return function


def hidden(function: F) -> F:
    """The function with dynamo off while it runs."""
    if _set_eval_frame is None:
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        before = _set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            _set_eval_frame(before)

    return passes_on(run)  # type: ignore[return-value]
