"""One forward of the whole model: its distinct tensors, its calls and leaves, the lane of its thread.

What passed is counted later, so it must not have been written to meanwhile. Torch counts the writes of each
tensor: a tensor that was never written has version 0, then and now. Only tensors that had been written before
they passed need a note of how often, in `written`: (index in the list, leaf) -> version. One tensor that was
written to between two of its uses is two things; only the last of them can still be counted.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rooms.nan.watch.count import KINDS, Counted, all_clean
from lab.rooms.nan.watch.leaves import (
    CACHE,
    FP8,
    ORDINARY,
    Unseen,
    as_counted,
    caches_in,
    is_cache_name,
    is_odd,
    is_tensor,
    leaves,
)
from lab.rooms.nan.watch.roles import IN, OUT
from lab.rooms.nan.watch.unseen_by_compile import hidden, passes_on

Label = tuple[int, int, str]  # module, side, leaf
Source = tuple[Any, ...]  # a place in the list, then keys into what is there
Written = dict[tuple[int, str], int]
Shapes = Sequence[tuple[torch.Size, torch.dtype]]


class Batch:
    """Distinct tensors, and leaves that point into them. `written` is None if all are counted at once."""

    overwritten = 0
    ever_written = 0  # distinct tensors whose version is not 0
    untracked = False  # something here was made in inference mode: torch counts no writes to it
    odd = False  # not all tensors here are plain: no template reads it
    num_bytes = -1
    fp8 = False  # something here is float8, in which a cast may have saturated
    put_out: np.ndarray | None = None
    kept_shapes: Shapes | None = None  # once the tensors are gone

    def __init__(self, written: Written | None) -> None:
        self.tensors: Sequence[Tensor] = []
        self.labels: list[Label] = []
        self.leaf_call: list[int] = []
        self.index: Sequence[int] | np.ndarray = []
        self.sources: list[Source | None] = []  # None: deeper than a template looks
        self.unseen: Tally[tuple[int, str, str]] = Tally()  # (module, leaf, why)
        self._written = written
        self._indices: dict[Any, int] = {}

    def add_inputs(self, module: int, args: Any, kwargs: Any, call: int, plain: Label, place: int) -> None:
        for number, value in enumerate(args):
            label = plain if not number else (module, IN, f"args[{number}]")
            self.add(value, label, call, (place + 1, number))
        for name, value in kwargs.items():
            if not is_cache_name(name):
                self.add(value, (module, IN, name), call, (place + 2, name))
            elif value is not None:
                self.unseen[module, name, CACHE] += 1

    def add_output(self, module: int, value: Any, call: int, plain: Label, source: Source) -> None:
        self.add(value, (module, OUT, "") if isinstance(value, Mapping) else plain, call, source)

    def add(self, value: Any, label: Label, call: int, source: Source) -> None:
        if is_tensor(value):
            self._tensor(value, label, call, source, source[0])
            return
        for name, leaf in leaves(value, label[2], label[1] == IN) if value is not None else ():
            if isinstance(leaf, Unseen):
                self.unseen[label[0], name, leaf.reason] += 1
            else:
                inside = _inside(value, leaf, source)
                self._tensor(leaf, (label[0], label[1], name), call, inside, source[0])

    def _tensor(self, tensor: Tensor, label: Label, call: int, source: Source | None, place: int) -> None:
        if is_odd(tensor):
            self._odd(tensor, label, call)
            return
        u = self._index_of(tensor, (place, label[2]))
        self._leaf(label, call, source, u)

    def _leaf(self, label: Label, call: int, source: Source | None, u: int) -> None:
        self.labels.append(label)
        self.leaf_call.append(call)
        self.sources.append(source)
        self.index.append(u)  # type: ignore[union-attr]

    def _odd(self, tensor: Tensor, label: Label, call: int) -> None:
        """A sparse, distributed, wrapped... tensor: each dense part of it is a leaf."""
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return
        self.odd = True
        parts, reason = as_counted(tensor)
        if reason:
            self.unseen[label[0], label[2], reason] += 1
        for number, part in enumerate(parts):
            self.tensors.append(part)  # type: ignore[attr-defined]
            name = label[2] if len(parts) == 1 else f"{label[2]}/{number}"
            self._leaf((label[0], label[1], name), call, None, len(self.tensors) - 1)

    def _index_of(self, tensor: Tensor, origin: tuple[int, str]) -> int:
        """The place of this tensor among the distinct ones; -1 if what passed was overwritten."""
        if tensor.is_inference():
            self.untracked = True
            if self._written is not None:
                self.overwritten += 1
                return -1
        version = 0 if self._written is None else tensor._version
        u = self._indices.get((id(tensor), version))
        if u is not None:  # it passed before with the version that it has now, so nothing was written since
            return u
        if version and self._written is not None:
            self.ever_written += 1
            if self._written.get(origin, 0) != version:
                self.overwritten += 1
                return -1
        u = self._indices[id(tensor), version] = len(self.tensors)
        self.tensors.append(tensor)  # type: ignore[attr-defined]
        self.fp8 |= tensor.dtype in FP8
        return u

    def outputs(self) -> np.ndarray:
        """For each distinct tensor whether some module put it out."""
        if self.put_out is None:
            sides = np.fromiter((side for _, side, _ in self.labels), np.int8, len(self.labels))
            flags = np.zeros(len(self.tensors) + 1, dtype=bool)
            flags[np.asarray(self.index, np.int64)[sides == OUT]] = True
            self.put_out = flags[:-1]  # -1 marked the added one
        return self.put_out

    def bytes(self) -> int:
        """What the tensors hold; a template's batches keep the figure of the first."""
        if self.num_bytes < 0:
            self.num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)
        return self.num_bytes

    def shapes(self) -> Shapes:
        return self.kept_shapes or [(tensor.shape, tensor.dtype) for tensor in self.tensors]

    def let_go(self) -> None:
        """Drop the tensors, but keep their shapes and types."""
        self.outputs()
        if self.kept_shapes is None:
            self.kept_shapes = self.shapes()
        self.tensors = []


def _inside(value: Any, tensor: Tensor, source: Source) -> Source | None:
    """Where `tensor` lies in a tuple, list or mapping, one level deep; None if deeper."""
    if isinstance(value, Mapping):
        return next(((*source, key) for key, one in value.items() if one is tensor), None)
    if isinstance(value, (tuple, list)):
        return next(((*source, index) for index, part in enumerate(value) if part is tensor), None)
    return None


def note_versions_of_call(args: Any, kwargs: Any, index: int, written: Written) -> None:
    """Note the versions of the tensors of a call, whose event begins at `index`."""
    for number, value in enumerate(args):
        note_versions(value, f"args[{number}]", index + 1, written)
    for name, value in kwargs.items():
        if not is_cache_name(name):
            note_versions(value, name, index + 2, written)


def note_versions(value: Any, leaf: str, index: int, written: Written) -> None:
    """Note how often the tensors in a value had been written, if they ever were."""
    if is_tensor(value):
        try:
            if type(value) in ORDINARY and not value._version:  # as a rule
                return
        except Exception:  # inference tensors refuse to say
            return
        if version := _version(value):
            written[index, leaf] = version
    elif value is not None:
        for inner, tensor in _safely(value, leaf):
            if isinstance(tensor, Tensor) and (version := _version(tensor)):
                written[index, inner] = version


def _safely(value: Any, leaf: str) -> Iterator[tuple[str, Tensor | Unseen]]:
    try:
        is_input = leaf != "output"
        yield from leaves(value, leaf if is_input or not isinstance(value, Mapping) else "", is_input)
    except Exception:  # an object that cannot be read here is counted as unseen when the batch is read
        return


def _version(tensor: Tensor) -> int:
    try:
        if type(tensor) in ORDINARY and not tensor._version:  # inference tensors refuse to say
            return 0
        return 0 if tensor.is_inference() or is_odd(tensor) else tensor._version
    except Exception:  # a subclass that refuses to be asked; when it is read it becomes a note
        return 0


def versions_are_missing(args: Any, kwargs: Any) -> bool:
    """Whether tensors are or were made in inference mode."""
    if torch.is_inference_mode_enabled():
        return True
    return any(is_tensor(value) and Tensor.is_inference(value) for value in (*args, *kwargs.values()))


class Forward:
    """What is known of a forward: its calls, its leaves as labels, its counts."""

    # Most forwards never change these.
    # (call, its input, value) of the first key/value cache, and of each call that takes another one.
    caches: Sequence[tuple[int, str | int, Any]] = ()
    caches_at: Sequence[int] = ()  # where these calls begin in the list of events
    weighed = bytes = 0
    collecting = False  # the garbage collector, which is off while the forward lasts, was on before
    failed = ""  # why it could not be counted, if so
    step: Any = None  # what `take` made of it
    time, update = 0, -1  # for the guard: when it ended, and in which step
    saved: Any = None  # for the guard: what it takes to run it again
    passage: Any = None  # for the guard: what became of its output

    @passes_on
    def __init__(self, number: int = 0, phase: str = "forward", query_length: int = 0) -> None:
        self.number, self.phase, self.query_length = number, phase, query_length
        self.calls: list[list[Any]] = []  # [module, parent call, returned]
        self.stack: list[int] = []
        self._parts: list[tuple[Batch, Counted]] = []

    def enter(self, module: int) -> int:
        self.calls.append([module, self.stack[-1] if self.stack else -1, False])
        self.stack.append(len(self.calls) - 1)
        return self.stack[-1]

    def note_caches(self, call: int, args: Sequence[Any], kwargs: Mapping[str, Any], index: int) -> None:
        """What a call takes for its key/value cache; `index` of its event."""
        for name, value in caches_in(args, kwargs):
            if value is not self.cache:
                self.caches = [*self.caches, (call, name, value)]
                self.caches_at = [*self.caches_at, index]

    @property
    def cache(self) -> Any:
        """What the whole model takes for its key/value cache."""
        return self.caches[0][2] if self.caches else None

    def leave(self, module: int) -> int:
        """A call returned; calls above it on the stack ended by an exception that was caught."""
        while self.calls[self.stack[-1]][0] != module:
            self.stack.pop()
        self.calls[self.stack[-1]][2] = True
        return self.stack.pop()

    def pass_through(self, module: int) -> int:
        """A module without children was called and returned."""
        self.calls.append([module, self.stack[-1] if self.stack else -1, True])
        return len(self.calls) - 1

    def empty(self) -> bool:
        """Whether nothing of it was taken so far."""
        return not self._parts

    def is_one_part(self) -> bool:
        """Whether all of it was read at once."""
        return len(self._parts) == 1 and not self.stack

    def untracked(self) -> bool:
        return any(batch.untracked for batch, _ in self._parts)

    def take(self, batch: Batch, counted: Counted) -> None:
        """Append the batch's leaves; `counted` will have one row per tensor of the batch."""
        self._parts.append((batch, counted))

    def turned_out_clean(self) -> bool:
        """Whether a GPU has found nothing bad in it, after the wait for that; False if no GPU counted it.

        The work that its tensors need here is done before the wait.
        """
        if self.failed or not all(counted.by_gpu for _, counted in self._parts):
            return False
        for batch, _ in self._parts:
            batch.let_go()
        if self.collecting and 0 < gc.get_threshold()[0] < gc.get_count()[0]:
            gc.collect(0)  # which would come as soon as it is on again, while the GPU waits
        return not any(counted.bad() for _, counted in self._parts)

    def known_clean(self) -> Batch | None:
        """Its one batch, if that is known to be clean and nothing of it was missed; None if not known."""
        if len(self._parts) != 1 or self.failed:
            return None
        batch, counted = self._parts[0]
        return batch if not batch.overwritten and counted.known_clean() else None

    def let_go(self) -> None:
        """Drop the tensors; their shapes are not asked for any more."""
        for batch, _ in self._parts:
            batch.tensors = []

    def read_out(self) -> Seen:
        """All parts as one, after the wait for their counts."""
        if len(self._parts) == 1:
            batch, counted = self._parts[0]
            rows, places = counted.rows(), np.asarray(batch.index, np.int64)
            clean = not batch.overwritten and not rows[:, :3].any()  # -1 stands for what is not known
            only = places if clean else _known(places, rows)
            return Seen(batch.labels, batch.leaf_call, only, rows, batch.outputs(), [batch], clean)
        batches = [batch for batch, _ in self._parts]
        parts = [counted.rows() for _, counted in self._parts]
        if not parts:
            return Seen([], [], np.zeros(0, np.int64), np.zeros((0, len(KINDS))), np.zeros(0, bool), [])
        begins = np.cumsum([0, *map(len, parts)])
        index = [
            _known(np.asarray(batch.index, np.int64), part)
            for batch, part in zip(batches, parts, strict=True)
        ]
        moved = [np.where(part >= 0, part + begin, -1) for part, begin in zip(index, begins, strict=False)]
        return Seen(
            [label for batch in batches for label in batch.labels],
            [call for batch in batches for call in batch.leaf_call],
            np.concatenate(moved),
            np.concatenate(parts),
            np.concatenate([batch.outputs() for batch in batches]),
            batches,
        )


def _known(index: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The index with -1 for rows that were not counted in time."""
    if all_clean(rows) or not len(rows) or rows[:, 0].min() >= 0:
        return index
    missing = np.append(rows[:, 0] < 0, True)  # -1 takes the added one
    masked_index: np.ndarray = np.where(missing[index], -1, index)
    return masked_index


@dataclass
class Seen:
    """A whole forward: its leaves in the order of time, and the index of each leaf's row in `counts`.

    Index -1: the tensor was overwritten before it could be counted.
    """

    labels: list[Label]
    leaf_call: list[int]
    index: np.ndarray
    counts: np.ndarray  # (distinct tensors, kinds)
    put_out: np.ndarray  # which of these some module put out
    batches: list[Batch]
    clean: bool = False  # known to be: all was counted, and nothing is bad

    def unknown(self) -> int:
        """How many leaves were overwritten before they could be counted."""
        if self.clean:
            return 0
        return int((self.index < 0).sum())

    def shapes(self) -> list[tuple[torch.Size, torch.dtype]]:
        """Of each row of counts."""
        return [shape for batch in self.batches for shape in batch.shapes()]

    def leaf_dtypes(self) -> list[str]:
        shapes = self.shapes()
        return [str(shapes[u][1]).replace("torch.", "") if u >= 0 else "" for u in self.index]

    def leaf_numel(self) -> np.ndarray:
        sizes = np.asarray([*(shape.numel() for shape, _ in self.shapes()), 0])
        numel: np.ndarray = sizes[self.index]  # -1 takes the added zero
        return numel


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
