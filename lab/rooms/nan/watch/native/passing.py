"""The short cuts of passing.c, as Python calls them: one set per process, a memory per guard.

All of them may say "not certain", and then the caller does the same in full. There are none without a C
compiler, where LAB_READER asks for the plain form, in a Python without its lock and with torch 1.12.
"""

from __future__ import annotations

import ctypes
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rooms.nan.watch.native.find import library, passing_library
from lab.rooms.nan.watch.native.layout import as_numbers, inner_at, type_at, version_at
from lab.rooms.nan.watch.plain import in_transform

# As passing.c has them.
OFF, SEEN, PEAKS, THREADS, MOST_THREADS, POINTS, MOST_POINTS = 0, 1, 16, 64, 32, 128, 8
STAGES = ("forward", "act_grads", "param_grads", "loss", "opt_state", "weights_after")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NAMES = tuple(str(one).removeprefix("torch.") for one in DTYPES)
PLACES = [(stage, name) for stage in STAGES for name in NAMES]  # of the peaks
METHODS = ("numel", "data_ptr", "is_contiguous", "detach", "contiguous", "storage_offset")
QUESTIONS = (
    "_len_torch_function_stack",
    "_len_torch_dispatch_stack",
    "_get_tracing_state",
    "is_inference_mode_enabled",
    "_current_graph_task_id",
    "_current_autograd_node",
)
_EXCHANGE_API = b"dlpack_exchange_api"

Hook = Callable[[Any], None]


class Looks:
    """The functions of passing.c."""

    def __init__(self, loaded: ctypes.PyDLL) -> None:
        self._hook = loaded.passing_hook
        looks = [loaded.passing_look(which) for which in range(12)]
        # (memory, stage, tensors) -> how many were ever written; -1 if something is bad or not certain
        self.clean: Callable[[int, int, list[Tensor]], int] = looks[0]
        # (parameters, counted) -> whether each one's gradient is the one that was counted, as it was then
        self.as_counted: Callable[[list[Tensor], dict[int, Any]], int] = looks[1]
        # (memory, whether of all threads) -> how many gradients have passed
        self.passed: Callable[[int, bool], int] = looks[2]
        # (parameters, versions) -> whether each one's version is the one noted; the second notes them
        self.unwritten: Callable[[list[Tensor], dict[int, int]], int] = looks[3]
        self.note_versions: Callable[[list[Tensor], dict[int, int]], int] = looks[4]
        # (tensors) -> whether surely no number of these is below zero
        self.none_below_zero: Callable[[list[Tensor]], int] = looks[5]
        # (tensors, plan of borders) -> (tensor, border) whose node has got no hook from its carrier
        self.carried: Callable[[list[Tensor], list[Any]], list[tuple[Tensor, Any]]] = looks[6]
        # (memory, stage, gradient) -> whether it is clean, and so has passed
        self.passes: Callable[[int, int, Tensor], int] = looks[7]
        # (names, versions, counted, optimizer) -> its parameters if one has a name, none was written since
        # its version was noted, and each gradient is the one that was counted; else None
        self.usual: Callable[..., list[Tensor] | None] = looks[8]
        # (memory, stage, tensors, plan) -> as `carried` if all are clean and none was ever written, else None
        self.whole: Callable[..., list[tuple[Tensor, Any]] | None] = looks[9]
        # (args, kwargs) -> whether nothing is special about a forward that begins where CUDA is not in use
        around = getattr(torch, "compiler", None), torch.cuda
        self.calm: Callable[[tuple[Any, ...], dict[str, Any]], int] = partial(looks[10], *around, None, {})
        # (what tells whether a graph is captured, names of caches, args, kwargs) -> the same, CUDA or not
        self.calm_anywhere: Callable[..., int] = partial(looks[10], *around)
        # (memory, first stage of two, states of optimizers, squares, named modules) -> whether all that they
        # keep and hold is surely finite, and no square below zero
        self.sound: Callable[..., int] = looks[11]

    def hook(self, which: int, *own: Any) -> Hook:
        made: Hook = self._hook(which, own)
        return made


@cache
def looks() -> Looks | None:
    """The short cuts; None where there are none."""
    counts, loaded = library(), passing_library()
    fits = hasattr(Tensor, "is_cpu") and getattr(sys, "_is_gil_enabled", lambda: True)()
    if counts is None or loaded is None or not fits:
        return None
    # The functions of CPython that it calls need the interpreter's lock, which a CDLL lets go of.
    locked = ctypes.PyDLL(loaded._name, handle=loaded._handle)
    locked.passing_hook.restype = locked.passing_look.restype = ctypes.py_object
    locked.passing_hook.argtypes = [ctypes.c_ssize_t, ctypes.py_object]
    locked.passing_look.argtypes = [ctypes.c_ssize_t]
    locked.passing_begin.argtypes = [ctypes.py_object, *[ctypes.c_void_p] * 3]
    locked.passing_begin.restype = None
    methods = (getattr(Tensor, name) for name in METHODS)
    asked = (getattr(torch._C, name, None) for name in QUESTIONS)
    kinds = (Tensor, torch.nn.Parameter, list, dict, defaultdict, bool)
    known = (*kinds, *DTYPES, *methods, in_transform, *asked)
    counting = ctypes.cast(counts.count_tensors, ctypes.c_void_p)
    locked.passing_begin(known, counting, _exchange(), as_numbers(type_at(), inner_at(), *version_at()))
    return Looks(locked)


def _exchange() -> int | None:
    """DLPack's function that describes a tensor's memory, from the table that torch has since 2.10."""
    capsule = vars(Tensor).get("__dlpack_c_exchange_api__")
    if type(capsule).__name__ != "PyCapsule":
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        table = pointer(capsule, _EXCHANGE_API)
    except ValueError:  # a capsule of another kind
        return None
    if ctypes.c_uint32.from_address(table).value != 1:  # the major version, in which the table is as below
        return None
    # version (two 32-bit numbers), the table before this one, three functions, then this
    return ctypes.c_void_p.from_address(table + 8 + 4 * ctypes.sizeof(ctypes.c_void_p)).value


class Passing:
    """What passed one guard on the short way: how many tensors by stage, and their largest magnitudes."""

    def __init__(self, found: Looks) -> None:
        self.looks = found
        self._memory = np.zeros(POINTS + 1 + MOST_POINTS * (1 + len(PLACES)), np.int64)
        self.address = self._memory.ctypes.data
        self.passes = partial(found.passes, self.address, STAGES.index("act_grads"))
        # How many gradients have passed: in this thread, or (True) anywhere.
        self.passed: Callable[[bool], int] = partial(found.passed, self.address)
        self._peaks = self._memory[PEAKS : PEAKS + len(STAGES) * len(DTYPES)].view(np.float64)

    def accumulated(self, slow: Hook, counted: dict[int, Any]) -> Hook:
        """A hook on a parameter: its gradient is clean and enters `counted`, or else `slow` is called."""
        return self.looks.hook(0, self.address, STAGES.index("param_grads"), slow, counted, self._memory)

    def entered(self, slow: Hook) -> Hook:
        """A hook for a gradient: it is clean, or else `slow` is called."""
        return self.looks.hook(1, self.address, STAGES.index("act_grads"), slow, self._memory)

    def began(self, slow: Hook, border: Any, entered: list[Any]) -> Hook:
        """A hook on a node: its gradient is clean and (border, node) enters `entered`, or `slow` runs."""
        stage = STAGES.index("act_grads")
        return self.looks.hook(2, self.address, stage, slow, border, entered, self._memory)

    def update_begins(self, slow: Hook, *own: Any) -> Hook:
        """Before an optimizer's step: as `slow`, or `slow` is called. See passing.c."""
        return self.looks.hook(3, slow, *own)

    def update_ended(self, slow: Hook, *own: Any) -> Hook:
        """After it, in the same way."""
        return self.looks.hook(4, slow, self.address, STAGES.index("opt_state"), *own)

    def loss_begins(self, slow: Callable[..., Any], *own: Any) -> Callable[..., Any]:
        """When a backward begins: as `slow`, or that is called. See passing.c."""
        return self.looks.hook(5, slow, self.address, *own)

    def loss_ended(self, slow: Callable[..., Any], *own: Any) -> Callable[..., Any]:
        """When it has ended, in the same way."""
        return self.looks.hook(6, slow, self.address, STAGES.index("loss"), *own)

    def cleaning(self, stage: str) -> Callable[[list[Tensor]], int]:
        """`clean` of one stage, without another frame of Python."""
        return partial(self.looks.clean, self.address, STAGES.index(stage))

    def whole(self, stage: str) -> Callable[..., list[tuple[Tensor, Any]] | None]:
        """`whole` of one stage."""
        return partial(self.looks.whole, self.address, STAGES.index(stage))

    def clean(self, stage: str, tensors: Sequence[Tensor]) -> int:
        """How many of these were ever written; -1 if something is bad or not certain."""
        return self.looks.clean(self.address, STAGES.index(stage), [*tensors])

    def sound(self, squares: dict[str, bool], optimizers: Iterable[Any], modules: list[Any]) -> bool:
        """Whether all that these optimizers keep and these modules hold is surely as it should be."""
        states = [getattr(one, "state", {}) for one in optimizers]
        return bool(self.looks.sound(self.address, STAGES.index("opt_state"), states, squares, modules))

    def end(self) -> None:
        """From now on hooks go the long way, which knows that the guard has ended."""
        self._memory[OFF] = 1

    def take_seen(self) -> list[tuple[str, int]]:
        """How many tensors of each stage after the forward were looked at since this was asked last."""
        counts = self._memory[SEEN : SEEN + len(STAGES)]
        found = [(stage, count) for stage, count in zip(STAGES, counts.tolist(), strict=True) if count]
        counts[:] = 0
        return [one for one in found if one[0] != "forward"]

    def take_peaks(self) -> list[tuple[str, str, float]]:
        """The largest magnitude of each stage and type since this was asked last."""
        peaks = self._peaks.tolist()
        found = [(*PLACES[at], peaks[at]) for at in self._peaks.nonzero()[0].tolist()]
        self.forget_peaks()
        return found

    def take_points(self) -> list[tuple[int, list[tuple[str, str, float]]]]:
        """(step, its largest magnitudes) of steps whose peaks were kept since this was asked last."""
        count = int(self._memory[POINTS])
        if not count:
            return []
        rows = self._memory[POINTS + 1 :].reshape(MOST_POINTS, -1)[:count]
        steps, peaks = rows[:, 0].tolist(), np.ascontiguousarray(rows[:, 1:]).view(np.float64).tolist()
        self._memory[POINTS] = 0
        return [
            (step, [(*place, one) for place, one in zip(PLACES, row, strict=True) if one])
            for step, row in zip(steps, peaks, strict=True)
        ]

    def forget_peaks(self) -> None:
        self._peaks.fill(0)
