"""One forward of the whole model: its distinct tensors, its calls and leaves, the lane of its thread.

What passed is counted later, so it must not have been written to meanwhile. Torch counts the writes of each
tensor. One that was never written when it passed is kept as it is, any other with its number of writes then
(`leaves.Passed`); if the number has grown, what passed is gone and unknown.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rooms.nan.watch.count import KINDS, Counted, all_clean
from lab.rooms.nan.watch.leaves import (
    ANY_VERSION,
    FP8,
    REAL,
    UNTRACKED,
    Passed,
    Unseen,
    all_plain,
    as_counted,
    is_odd,
    is_tensor,
)
from lab.rooms.nan.watch.roles import IN, OUT
from lab.rooms.nan.watch.unseen_by_compile import hidden

Label = tuple[int, int, str]  # module, side, leaf
Shapes = list[tuple[torch.Size, torch.dtype]]
DTYPE, LAYOUT, SHAPE, VERSION = map(attrgetter, ("dtype", "layout", "shape", "_version"))
UNKNOWN, NO_NUMBERS = -1, -2  # in place of an index among the tensors
NO_ROWS = np.zeros((0, len(KINDS)))


class Forward:
    """One forward: its calls, its leaves as labels, and the counts of the distinct tensors behind these.

    It is read as a whole when it ends or, where memory or writes in place forbid that, part by part.
    """

    # Most forwards never change these.
    # (call, value) of the first key/value cache, and of each call that takes another one.
    caches: Sequence[tuple[int, Any]] = ()
    weighed = bytes = 0
    collecting = False  # the garbage collector, which is off while the forward lasts, was on before
    failed = ""  # why it could not be counted, if so
    step: Any = None  # what `take` made of it
    time, update = 0, -1  # for the guard: when it ended, and in which step
    saved: Any = None  # for the guard: what it takes to run it again
    passage: Any = None  # for the guard: what became of its output
    overwritten = 0  # tensors, before they were counted
    untracked = False  # something was made in inference mode: torch counts no writes to it
    fp8 = False  # something is float8, in which a cast may have saturated
    clean = False  # known to be: all was counted, and nothing is bad
    places: np.ndarray | None = None  # `index` as an array, which equal forwards share
    _at_once, _is_plain, _first_leaf = False, True, 0  # of the part that was read last
    _put_out: np.ndarray | None = None
    # Of an equal forward: asking each tensor is a tenth of what watching a decode step costs. Its types are
    # these; its sizes may be others, which are not asked for while it is clean.
    _like: Shapes | None = None

    def __init__(self, number: int = 0, phase: str = "forward", query_length: int = 0) -> None:
        self.number, self.phase, self.query_length = number, phase, query_length
        self.calls: list[list[Any]] = []  # [module, parent call, returned]
        self.stack: list[int] = []
        # Of each leaf in order of time: its label, its call, and its tensor among the distinct ones (UNKNOWN:
        # it was overwritten before it could be counted).
        self.labels: list[Label] = []
        self.leaf_call: list[int] = []
        self.index: list[int] = []
        self.unseen: Tally[tuple[int, int, str, str]] = Tally()  # (module, side, leaf, why)
        self.tensors: Any = []  # the distinct ones of the last part
        self.rows = NO_ROWS  # (distinct tensors, kinds)
        self._indices: dict[Any, int] = {}
        self._shapes: Shapes = []  # of tensors that are gone
        self._counted: list[Counted] = []

    # Reading

    def enter(self, module: int) -> int:
        self.calls.append([module, self.stack[-1] if self.stack else -1, False])
        self.stack.append(len(self.calls) - 1)
        return self.stack[-1]

    def leave(self, module: int) -> int:
        """A call returned; calls above it on the stack ended by an exception that was caught."""
        while self.calls[self.stack[-1]][0] != module:
            self.stack.pop()
        self.calls[self.stack[-1]][2] = True
        return self.stack.pop()

    def read(self, heads: list[Any], values: list[Any], *, at_once: bool) -> None:
        """Take further events apart into calls and leaves.

        at_once: they are counted before the program goes on, so nothing can have written to them.
        """
        self._at_once, self._first_leaf = at_once, len(self.labels)
        self._indices.clear()
        position = iter(values)
        for head in heads:
            if type(head) is tuple:
                module, count, *names = head
                call = self.enter(module)
                for name in (*(f"args[{number}]" for number in range(count)), *names):
                    self._input(next(position), (module, IN, name), call)
            elif head >= 0:
                self.calls.append([head, self.stack[-1] if self.stack else -1, True])
                call = len(self.calls) - 1
                self._input(next(position), (head, IN, "args[0]"), call)
                self._add(next(position), (head, OUT, "output"), call)
            else:
                self._add(next(position), (~head, OUT, "output"), self.leave(~head))
        self._is_plain = not self.tensors or all_plain(self.tensors)
        if not self._is_plain:
            self._read_odd()

    def _input(self, value: Any, label: Label, call: int) -> None:
        if type(value) is Passed and value.cache is not None and value.cache is not self.cache:
            self.caches = [*self.caches, (call, value.cache)]
        self._add(value, label, call)

    @property
    def cache(self) -> Any:
        """What the whole model takes for its key/value cache."""
        return self.caches[0][1] if self.caches else None

    def _add(self, value: Any, label: Label, call: int) -> None:
        """A value that passed: a tensor that was never written, a tuple of these, or what passed."""
        kind = type(value)
        if kind is Tensor:
            self._tensor(value, 0, label, call)
        elif kind is tuple:
            for number, inner in enumerate(value):
                self._add(inner, (label[0], label[1], f"{label[2]}[{number}]"), call)
        elif kind is Passed:
            for name, leaf, version in value.leaves:
                if isinstance(leaf, Unseen):
                    self.unseen[label[0], label[1], name, leaf.reason] += 1
                else:
                    self._tensor(leaf, version, (label[0], label[1], name), call)

    def _tensor(self, tensor: Tensor, version: int, label: Label, call: int) -> None:
        key = (id(tensor), version) if version else id(tensor)
        u = self._indices.get(key)
        if u is None:
            u = self._indices[key] = self._index_of(tensor, version)
        if u != NO_NUMBERS:
            self._leaf(label, call, u)

    def _leaf(self, label: Label, call: int, u: int) -> None:
        self.labels.append(label)
        self.leaf_call.append(call)
        self.index.append(u)

    def _index_of(self, tensor: Tensor, version: int) -> int:
        """The place of a new tensor among the distinct ones."""
        dtype = tensor.dtype
        if dtype not in REAL:
            if not (dtype.is_floating_point or dtype.is_complex):
                return NO_NUMBERS
            self.fp8 |= dtype in FP8
        if version == UNTRACKED:
            self.untracked = True
        if not self._at_once and version != ANY_VERSION and (version < 0 or tensor._version != version):
            self.overwritten += 1
            return UNKNOWN
        self.tensors.append(tensor)
        return len(self._shapes) + len(self.tensors) - 1

    def _read_odd(self) -> None:
        """A sparse, distributed, wrapped... tensor: each dense part of it is a leaf."""
        begin, first = len(self._shapes), self._first_leaf
        leaves = [*zip(self.labels[first:], self.leaf_call[first:], self.index[first:], strict=True)]
        for column in (self.labels, self.leaf_call, self.index):
            del column[first:]
        tensors, self.tensors = self.tensors, []
        parts_of, reasons = {UNKNOWN: [UNKNOWN]}, {UNKNOWN: ""}
        for u, tensor in enumerate(tensors, begin):
            parts, reasons[u] = as_counted(tensor) if is_odd(tensor) else ([tensor], "")
            parts_of[u] = [begin + len(self.tensors) + number for number in range(len(parts))]
            self.tensors += parts
        for label, call, u in leaves:
            if reasons[u]:
                self.unseen[label[0], label[1], label[2], reasons[u]] += 1
            for number, part in enumerate(parts_of[u]):
                name = label[2] if len(parts_of[u]) == 1 else f"{label[2]}/{number}"
                self._leaf((label[0], label[1], name), call, part)

    def last_part(self) -> tuple[Sequence[Label], Sequence[int], Sequence[int]]:
        """(labels, calls, places in `tensors`) of the leaves that were read last."""
        first, begin = self._first_leaf, len(self._shapes)
        if not first and not begin:
            return self.labels, self.leaf_call, self.index
        index = [u - begin if u >= 0 else u for u in self.index[first:]]
        return self.labels[first:], self.leaf_call[first:], index

    def forget_last_part(self) -> None:
        """It could not be read or counted: only its calls are known."""
        first, self.tensors = self._first_leaf, []
        self.labels, self.leaf_call = self.labels[:first], self.leaf_call[:first]
        self.index, self.places = self.index[:first], None

    def is_new(self) -> bool:
        """Whether nothing of it was read so far."""
        return not self._counted

    def is_one_part(self) -> bool:
        """Whether all of it was read at once."""
        return len(self._counted) == 1 and not self.stack

    def is_plain(self) -> bool:
        """Whether all tensors were dense, and none was written before or after it passed."""
        missed = not self._is_plain or self.overwritten or self.untracked
        return not (missed or any(map(VERSION, self.tensors)))

    # Its tensors

    def num_bytes(self) -> int:
        """Of the last part."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def shapes(self) -> Shapes:
        """Of each row."""
        last_shapes = zip(map(SHAPE, self.tensors), map(DTYPE, self.tensors), strict=True)
        return [*self._shapes, *last_shapes] if self.tensors else self._shapes

    def let_go(self) -> None:
        """Drop the tensors, but keep their shapes and types."""
        self._shapes = self.shapes()
        self.tensors = []

    def leaf_dtypes(self) -> list[str]:
        shapes = self.shapes()
        return [str(shapes[u][1]).replace("torch.", "") if u >= 0 else "" for u in self.leaf_rows]

    def leaf_numel(self) -> np.ndarray:
        sizes = np.asarray([*(shape.numel() for shape, _ in self.shapes()), 0])
        numel: np.ndarray = sizes[self.leaf_rows]  # UNKNOWN takes the added zero
        return numel

    def put_out(self) -> np.ndarray:
        """For each row whether some module put it out."""
        if self._put_out is None:
            flags = np.zeros(len(self.shapes()) + 1, dtype=bool)  # UNKNOWN marks the added one
            flags[[u for u, label in zip(self.index, self.labels, strict=True) if label[1] == OUT]] = True
            self._put_out = flags[:-1]
        return self._put_out

    # Its counts

    def take(self, counted: Counted) -> None:
        """`counted` will have one row per tensor of the last part."""
        self._counted.append(counted)

    def turned_out_clean(self) -> bool:
        """Whether a GPU has found nothing bad in it, after the wait for that; False if no GPU counted it.

        The work that its tensors need here is done before the wait. While a prefill is still computed, so is
        letting them go; a decode step is computed by then, and would only ask for shapes in vain.
        """
        if self.failed or not all(counted.by_gpu for counted in self._counted):
            return False
        if self._like is None or self.query_length > 1:
            self.let_go()
        if self.collecting and 0 < gc.get_threshold()[0] < gc.get_count()[0]:
            gc.collect(0)  # which would come as soon as it is on again, while the GPU waits
        clean = not any(counted.bad() for counted in self._counted)
        if clean and self._like is not None:
            self.tensors, self._shapes = (), self._like
        return clean

    def known_clean(self) -> bool:
        """Whether it was read at once, is known to be clean, and nothing of it was missed."""
        is_whole = len(self._counted) == 1 and not self.failed and not self.overwritten
        return is_whole and self._counted[0].known_clean()

    @property
    def leaf_rows(self) -> np.ndarray:
        """Of each leaf its row (UNKNOWN: not counted in time)."""
        if self.places is None:
            self.places = np.asarray(self.index, np.int64)
        return self.places

    def read_out(self) -> None:
        """Wait for all counts."""
        parts = [counted.rows() for counted in self._counted]
        self.rows = rows = parts[0] if len(parts) == 1 else np.concatenate([NO_ROWS, *parts])
        self.clean = not self.overwritten and not rows[:, :3].any()  # -1 stands for what is not known
        if not self.clean and not all_clean(rows) and len(rows) and rows[:, 0].min() < 0:
            missing = np.append(rows[:, 0] < 0, True)  # UNKNOWN takes the added one
            self.places = np.where(missing[self.leaf_rows], UNKNOWN, self.leaf_rows)

    def unknown(self) -> int:
        """How many leaves were overwritten before they could be counted."""
        return 0 if self.clean else int((self.leaf_rows < 0).sum())


class Pattern:
    """A forward; one that is equal but for its tensors is read by a few comparisons.

    Reading calls one by one costs a microsecond or two each, a tenth of a decode step of a 7B model.
    """

    def __init__(self, heads: list[Any], values: list[Any], forward: Forward) -> None:
        self._heads, self._kinds = [*heads], [*map(type, values)]
        self._rows = _picker([n for n, kind in enumerate(self._kinds) if kind in (tuple, Passed)])
        inside, self._inner = _opened(self._rows(values))
        flat = [*values, *inside]
        self._tensors = _picker([n for n, value in enumerate(flat) if isinstance(value, Tensor)])
        tensors = self._tensors(flat)
        first: dict[int, int] = {}  # the first place of each object
        self._firsts = _picker([first.setdefault(id(tensor), n) for n, tensor in enumerate(tensors)])
        self._once, self._num_objects = _picker([*first.values()]), len(first)
        self._dtypes = [*map(DTYPE, self._once(tensors))]
        self._distinct = _picker([first[id(tensor)] for tensor in forward.tensors])
        caches = [id(value.cache) if type(value) is Passed else 0 for value in values]
        self._caches = [(call, caches.index(id(cache))) for call, cache in forward.caches]
        shared = ("calls", "labels", "leaf_call", "index", "unseen", "fp8")
        self._shared = {name: getattr(forward, name) for name in shared}
        self._shared |= {
            "places": forward.leaf_rows,
            "_put_out": forward.put_out(),
            "_like": forward.shapes(),
        }

    def read(self, heads: list[Any], values: list[Any], forward: Forward) -> bool:
        """Fill in an equal forward; False if it differs, or if a tensor was ever written."""
        if heads != self._heads or [*map(type, values)] != self._kinds:
            return False
        inside, inner = _opened(self._rows(values))
        if inner != self._inner:
            return False
        tensors = self._tensors([*values, *inside])
        keys = [*map(id, tensors)]
        same = self._firsts(keys) == tuple(keys) and len({*self._once(keys)}) == self._num_objects
        if not same or [*map(DTYPE, self._once(tensors))] != self._dtypes:
            return False
        distinct = self._distinct(tensors)
        if any(map(VERSION, distinct)) or {*map(LAYOUT, distinct)} != {torch.strided}:
            return False
        vars(forward).update(self._shared, tensors=distinct)
        forward.caches = [(call, values[n].cache) for call, n in self._caches]
        return True


def _opened(rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """(what lies in tuples and what passed, one by one; its lengths, names and types)"""
    inside, inner = list[Any](), list[Any]()
    for row in rows:
        if type(row) is tuple:
            inside += row
            inner += (len(row), *map(type, row))
        else:
            inner.append(len(row.leaves))
            for name, leaf, _ in row.leaves:
                inside.append(leaf)
                inner.append((name, leaf.reason if isinstance(leaf, Unseen) else type(leaf)))
    return inside, inner


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """The items at `places` as a tuple; itemgetter gives none for one or no place."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple(items[place] for place in places)


def versions_are_missing(args: Any, kwargs: Any) -> bool:
    """Whether tensors are or were made in inference mode."""
    if torch.is_inference_mode_enabled():
        return True
    return any(is_tensor(value) and Tensor.is_inference(value) for value in (*args, *kwargs.values()))


# What a call does beside appending: nothing, count at once (the mode outside of a forward too), or pass
# everything on because this whole forward cannot be seen.
COLLECT, AT_ONCE, ASIDE = range(3)
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None) or (lambda: False)
# What it asks, without two frames of Python.
_HAS_FLAG = hasattr(getattr(torch, "compiler", None), "_is_compiling_flag")
IN_BACKWARD = getattr(torch._C, "_current_graph_task_id", None)


class Lane:
    """The forward that runs in one thread."""

    def __init__(self) -> None:
        # A call: (module, number of args, names of the rest); ~module: its return; a module without children
        # that takes one value: both in one. And the values of these, in turn.
        self.heads: list[Any] = []
        self.values: list[Any] = []
        self.forward = Forward()
        self.mode = AT_ONCE
        self.inside = False
        self.weigh_at = sys.maxsize
        self.path: list[int] | None = None  # the modules around, while a forward is run again
        # Of a forward counted at once: tensors and their versions.
        self.counted_versions: list[tuple[Tensor, int]] = []
        self._idle = self.forward

    def let_go(self) -> None:
        self.heads.clear()
        self.values.clear()
        self.forward.weighed = self.forward.bytes = 0

    def close(self) -> None:
        """The forward is over, whoever has it."""
        self.heads.clear()
        self.values.clear()
        self.inside, self.mode, self.forward = False, AT_ONCE, self._idle
        self.counted_versions = []


class Lanes(threading.local):
    """`lane` is the calling thread's own; `weigh` looks at what its references hold."""

    def __init__(self, weigh: Callable[[Lane], None]) -> None:
        self.lane, self.weigh = Lane(), weigh


def recomputing() -> bool:
    """Whether autograd runs backward in this thread: a forward now repeats a checkpointed one.

    Torch before 2.0 does not tell.
    """
    return IN_BACKWARD is not None and bool(IN_BACKWARD() != -1)


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


def phase_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, int]:
    """(phase, query length): prefill or decode by the length; `forward` and 0 for a model without a query."""
    for name in ("input_ids", "inputs_embeds", "decoder_input_ids") if kwargs else ():
        if isinstance(kwargs.get(name), Tensor):
            return _by_length(kwargs[name])
    if args and isinstance(args[0], Tensor) and args[0].dim() == 2 and not args[0].is_floating_point():
        return _by_length(args[0])
    return "forward", 0


def _by_length(tensor: Tensor) -> tuple[str, int]:
    length = int(tensor.shape[1]) if tensor.dim() > 1 else 1
    return ("prefill" if length > 1 else "decode"), length
