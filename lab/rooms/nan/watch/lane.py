"""What a watch keeps for each thread, and what keeps it from looking at a call."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lab.rooms.nan.watch.batch import Written, note_versions
from lab.rooms.nan.watch.forward import Forward
from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on

# What a call does beside appending: nothing, note versions, count at once (the mode outside of a forward
# too), or pass everything on because this whole forward cannot be seen.
NOTHING, VERSIONS, EVERYTHING, ASIDE = range(4)
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None) or (lambda: False)
# What it asks, without two frames of Python.
_HAS_FLAG = hasattr(getattr(torch, "compiler", None), "_is_compiling_flag")
_in_backward = getattr(torch._C, "_current_graph_task_id", None)


class Lane:
    """The forward that runs in one thread."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.written: Written = {}
        self.forward = Forward()
        self.mode = EVERYTHING
        self.inside = False
        self.weigh_at = sys.maxsize
        self.path: list[int] | None = None  # the modules around, while a forward is run again
        # Where the output of the whole forward is, if not in `written`.
        self.pending_output: tuple[int, Any] | None = None
        # Of a forward counted at once: tensors and their versions.
        self.counted_versions: list[tuple[Tensor, int]] = []
        self._idle = self.forward

    def noted(self) -> Written:
        """How often tensors had been written when they passed, as far as that is noted."""
        if self.pending_output is not None:
            (index, output), self.pending_output = self.pending_output, None
            note_versions(output, "output", index, self.written)
        return self.written

    def let_go(self) -> None:
        self.events.clear()
        self.written.clear()
        self.forward.weighed = self.forward.bytes = 0

    @passes_on
    def close(self) -> None:
        """The forward is over, whoever has it."""
        self.pending_output = None
        self.events.clear()
        self.written.clear()
        self.inside, self.mode, self.forward = False, EVERYTHING, self._idle
        if self.counted_versions:
            self.counted_versions = []


class Lanes(threading.local):
    """`lane` is the calling thread's own; `weigh` looks at what its references hold."""

    def __init__(self, weigh: Callable[[Lane], None]) -> None:
        self.lane, self.weigh = Lane(), weigh


def recomputing() -> bool:
    """Whether autograd runs backward in this thread: a forward now repeats a checkpointed one."""
    return _in_backward is not None and bool(_in_backward() != -1)


def blind() -> str:
    """Why nothing can be seen now; empty if it can. For code that torch.compile cannot see already."""
    if torch.compiler._is_compiling_flag if _HAS_FLAG else _is_compiling():
        return "torch.compile traces it"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace traces it"
    if getattr(torch.cuda, "_initialized", True) and is_capturing():
        return "a CUDA graph is captured"
    return ""


@hidden
def is_capturing() -> bool:
    capturing = torch.cuda.is_current_stream_capturing  # asked before CUDA is in use, it would begin it
    return bool(torch.cuda.is_initialized() and capturing())  # type: ignore[no-untyped-call]


RECOMPUTE = "recompute"  # of a checkpoint, inside backward


@passes_on
def phase_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, int]:
    """(phase, query length): prefill or decode by the length; `forward` and 0 for a model without a query."""
    for name in ("input_ids", "inputs_embeds", "decoder_input_ids") if kwargs else ():
        if isinstance(kwargs.get(name), Tensor):
            return _by_length(kwargs[name])
    if args and isinstance(args[0], Tensor) and args[0].dim() == 2 and not args[0].is_floating_point():
        return _by_length(args[0])
    return "forward", 0


@passes_on
def _by_length(tensor: Tensor) -> tuple[str, int]:
    length = int(tensor.shape[1]) if tensor.dim() > 1 else 1
    return ("prefill" if length > 1 else "decode"), length
