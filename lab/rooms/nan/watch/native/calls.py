"""The short way around a module's call, in C: one set per process. `seam` says when it is taken.

There is none without a C compiler, where LAB_READER asks for the plain form, and in a Python whose threads
are not CPython's own.
"""

from __future__ import annotations

import _thread
import ctypes
import sys
import threading
from array import array
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from lab.rooms.nan.watch.leaves import CACHES, STAYS, as_passed
from lab.rooms.nan.watch.native.find import calls_library
from lab.rooms.nan.watch.native.layout import (
    NO_BODY,
    as_numbers,
    body_at,
    inner_at,
    negative_at,
    place_of,
    type_at,
    version_at,
)
from lab.rooms.nan.watch.native.passing import _exchange as exchange

GLOBAL_HOOKS = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)
OWN_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
# What `_call_impl` asks, in this order, before it calls `forward` and does nothing else (torch 2.0 to 2.13).
ASKED = ("torch", "_C", "_get_tracing_state", "_slow_forward", "forward", *OWN_HOOKS, *GLOBAL_HOOKS)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # as calls.c has them
CALL_IMPL = vars(nn.Module)["_call_impl"]
_OWN_CALLS = (CALL_IMPL, vars(nn.Module).get("_wrapped_call_impl"))
_MODULE: dict[str, Any] = vars(sys.modules[nn.Module.__module__])
_HOOKS = [_MODULE.get(name) for name in GLOBAL_HOOKS]
_eval_frame = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_compiling = getattr(_eval_frame, "get_eval_frame_callback", None)
_AS_EXPECTED = (
    CALL_IMPL.__code__.co_names[: len(ASKED)] == ASKED
    and CALL_IMPL.__code__.co_filename == _MODULE.get("__file__")
    and None not in _HOOKS
)


class Reading:
    """The functions of calls.c that read what a forward left."""

    def __init__(self, loaded: ctypes.PyDLL) -> None:
        matched, unwritten, described = (loaded.calls_function(which) for which in (4, 5, 6))
        noted, moved = (loaded.calls_function(which) for which in (9, 10))
        # (tensors) -> their shapes and types for `unpacked`, if all are plain
        self.shapes: Callable[[list[Tensor]], bytes | None] = loaded.calls_function(7)
        # (events, shape, calls, places, tensors) -> the tensors, or None: see `template`
        self.matched: Callable[..., list[Tensor] | None] = matched
        # (tensors) -> whether surely none of these was ever written
        self.unwritten: Callable[[list[Tensor]], int] = unwritten
        # (tensors) -> (types, devices and shapes; addresses) if all are plain and dense
        self.described: Callable[[list[Tensor]], tuple[bytes, bytes] | None] = described
        # (tensors) -> by what the next tells equal lists, if that is known of this torch
        self.noted: Callable[[list[Tensor]], bytes | None] = noted
        # (tensors, noted, least) -> their addresses if they are as noted, none below the least, and 16
        # divides each
        self.moved: Callable[[list[Tensor], bytes, int], bytes | None] = moved


class Calls:
    """The functions of calls.c around a module's call."""

    def __init__(self, loaded: ctypes.PyDLL, patched: FunctionType) -> None:
        self._original = loaded.calls_original
        # (module, *args, **kwargs): the call
        self.called: Callable[..., Any] = loaded.calls_function(0)
        # (lanes, lane, events, weigh_at): a forward begins in this thread that only collects
        self.arm: Callable[..., None] = loaded.calls_function(1)
        self.disarm: Callable[[Any], None] = loaded.calls_function(2)  # (lane): it is over
        self.changed: Callable[[], None] = loaded.calls_function(3)  # the table has
        # (lanes, what a usual forward in them takes, or None at its end): see calls.c
        self.usual: Callable[[Any, tuple[Any, ...] | None], None] = loaded.calls_function(8)
        _replace_vectorcall(patched, loaded.calls_vectorcall())

    def begin(self, original: Callable[..., Any]) -> None:
        """The patch is made: `original` is what `nn.Module.__call__` was."""
        self._original(original, _AS_EXPECTED and original in _OWN_CALLS)


def _replace_vectorcall(function: FunctionType, way: int) -> None:
    """From now on a call of this function runs `way`; its code is for those who run it by themselves."""
    replace = getattr(ctypes.pythonapi, "PyFunction_SetVectorcall", None)  # Python 3.12
    if replace is not None:
        replace.restype, replace.argtypes = None, [ctypes.py_object, ctypes.c_void_p]
        replace(function, way)
        return
    usual = getattr(ctypes.pythonapi, "_PyFunction_Vectorcall", None)
    if usual is not None:
        place = place_of(ctypes.cast(usual, ctypes.c_void_p).value or 0, function)
        if place > 0:
            ctypes.c_void_p.from_address(id(function) + place).value = way


def unpacked(shapes: bytes) -> list[tuple[torch.Size, torch.dtype]]:
    """What `shapes` of calls.c gives: for each tensor its type, how many dimensions, and these."""
    words, found = array("q", shapes), []
    while words:
        begin, end = 2, 2 + words[1]
        found.append((torch.Size(words[begin:end]), DTYPES[words[0]]))
        words = words[end:]
    return found


def ordinary(module: nn.Module) -> type[nn.Module] | None:
    """Its class, if what `_call_impl` asks of such a module lies in the module's own dictionary."""
    kind = type(module)
    return None if any(hasattr(kind, name) for name in OWN_HOOKS) else kind


def seam_calls(table: Any, in_python: Callable[..., Any], patched: FunctionType) -> Calls | None:
    """Once per process: `table` and `in_python` are those of `seam`, and `patched` becomes the short way."""
    loaded = _loaded()
    if loaded is None:
        return None
    hooks = _HOOKS if _AS_EXPECTED else [{}] * len(GLOBAL_HOOKS)
    questions = (torch._C._get_tracing_state, _compiling)
    types = FunctionType, CALL_IMPL, object.__getattribute__
    state = _MODULE, sys.modules, sys.getprofile, sys.gettrace
    passed = STAYS, as_passed, dict.fromkeys(CACHES)
    loaded.calls_begin((table, in_python, *types, *questions, *hooks, *state, *passed), _tracing_state())
    return Calls(loaded, patched)


def reading() -> Reading | None:
    """None where there is no C, or the plain form is asked for."""
    return _reading() if calls_library() is not None else None


@cache
def _reading() -> Reading | None:
    loaded = _loaded()
    return Reading(loaded) if loaded is not None else None


@cache
def _loaded() -> ctypes.PyDLL | None:
    found = calls_library()
    fits = threading.local is _thread._local and getattr(sys, "_is_gil_enabled", lambda: True)()
    if found is None or not fits or sys.implementation.name != "cpython":
        return None
    # The functions of CPython that it calls need the interpreter's lock, which a CDLL lets go of.
    locked = ctypes.PyDLL(found._name, handle=found._handle)
    locked.calls_function.restype, locked.calls_function.argtypes = ctypes.py_object, [ctypes.c_ssize_t]
    locked.calls_vectorcall.restype, locked.calls_vectorcall.argtypes = ctypes.c_void_p, []
    locked.calls_begin.restype, locked.calls_begin.argtypes = None, [ctypes.py_object, ctypes.c_void_p]
    locked.calls_original.restype, locked.calls_original.argtypes = None, [ctypes.py_object, ctypes.c_int]
    locked.calls_prepare.restype = None
    locked.calls_prepare.argtypes = [ctypes.py_object, *[ctypes.c_void_p] * 2, ctypes.c_ssize_t]
    places = as_numbers(type_at(), inner_at(), *version_at(), *negative_at(), *body_at())
    locked.calls_prepare(
        (Tensor, nn.Parameter, Tensor.is_neg), exchange(), places, len(body_at()) - len(NO_BODY)
    )
    return locked


def _tracing_state() -> int | None:
    """The function of torch's that says where it keeps the state of a trace; None if it has no such now.

    Asked in Python, that costs as much as all else that is asked before a call.
    """
    try:
        found = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        state = found._ZN5torch3jit6tracer15getTracingStateEv  # `const std::shared_ptr<TracingState>&`
    except (OSError, AttributeError):
        return None
    state.restype = ctypes.c_void_p
    traces = ctypes.c_void_p.from_address(state()).value is not None
    if traces != (torch._C._get_tracing_state() is not None):
        return None
    return ctypes.cast(state, ctypes.c_void_p).value
