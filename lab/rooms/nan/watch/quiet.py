"""Counting without a trace: no gradient, no entry in the program's own modes and transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from lab.rooms.nan.watch.plain import in_transform

T = TypeVar("T")
try:
    from torch._functorch import pyfunctorch as _transforms
except ImportError:  # torch 1.12
    _transforms = None  # type: ignore[assignment]
# Away from all transforms at once; before torch 2.4 from one, and the next time from the next one.
_outside_transforms: Any = getattr(
    _transforms,
    "temporarily_clear_interpreter_stack",
    getattr(_transforms, "temporarily_pop_interpreter_stack", None),
)
try:
    from torch.utils._python_dispatch import _disable_current_modes
except ImportError:  # torch 1.12
    _disable_current_modes = None  # type: ignore[assignment]
_len_modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
_len_functions = getattr(torch._C, "_len_torch_function_stack", None)


def quiet(work: Callable[[Any], T], value: Any, *, reads_only: bool = False) -> T:
    """`work(value)` unseen by whatever the program has switched on.

    What `reads_only` calls no operator of torch's as a rule, and needs no shelter while nothing is on.
    """
    if reads_only and not (
        in_transform()
        or (_len_modes is not None and _len_modes())
        or (_len_functions is not None and _len_functions())
    ):
        return work(value)
    if _outside_transforms is not None and in_transform():
        with _outside_transforms():
            return quiet(work, value)
    with torch.no_grad():
        if _len_modes is not None and _len_modes() and _disable_current_modes is not None:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                return work(value)
        if _len_functions is not None and _len_functions():
            with torch._C.DisableTorchFunction():
                return work(value)
        return work(value)
