"""From what a watched forward left behind, references in a list, to distinct tensors and the leaves that hold them.

Events lie flat in one list, three places each: (module, args, kwargs) for a call, (~module, output, None) for its return, and
for a module without children that takes one value both in one: (module + PASSED, input, output).

What passed is counted later, so it must not have been written to meanwhile. Torch counts the writes of each tensor: a tensor
that was never written has version 0, then and now. Only tensors that had been written before they passed need a note of how often,
in `written`: (place in the list, leaf) -> version.

Reading events one by one costs a microsecond or two each, a fifth of a decode step of a 7B model. A `Template` remembers
where the tensors of an equal forward were, so that the next one is read by a few list comprehensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rooms.nan.watch.count import Counted
from lab.rooms.nan.watch.leaves import is_skipped, leaves
from lab.rooms.nan.watch.roles import IN, OUT

PASSED = 1 << 32  # added to a module's number where its call and its return are one event
Label = tuple[int, int, str]  # module, side, leaf
Source = tuple[Any, ...]  # a place in the list, then keys into what is there
Written = dict[tuple[int, str], int]
Picker = Callable[[Sequence[Any]], tuple[Any, ...]]
VERSION, DTYPE = attrgetter("_version"), attrgetter("dtype")
CACHES = ("past_key_values", "past_key_value", "layer_past")


class Forward:
    """What is known of a forward: its calls, its leaves as labels, its counts."""

    def __init__(self, number: int = 0, phase: str = "forward", query_length: int = 0) -> None:
        self.number, self.phase, self.query_length = number, phase, query_length
        self.calls: list[list[Any]] = []  # [module, parent call, returned]
        self.stack: list[int] = []
        self.cache: Any = None
        self.weighed = self.bytes = 0
        self._parts: list[tuple[Batch, Counted]] = []

    def enter(self, at: int, kwargs: Mapping[str, Any]) -> int:
        self.calls.append([at, self.stack[-1] if self.stack else -1, False])
        self.stack.append(len(self.calls) - 1)
        if self.cache is None and kwargs:
            self.cache = next((kwargs[name] for name in CACHES if kwargs.get(name) is not None), None)
        return self.stack[-1]

    def leave(self, at: int) -> int:
        """A call returned; calls above it on the stack were left by an exception that somebody caught."""
        while self.calls[self.stack[-1]][0] != at:
            self.stack.pop()
        self.calls[self.stack[-1]][2] = True
        return self.stack.pop()

    def pass_through(self, at: int) -> int:
        """A module without children was called and returned."""
        self.calls.append([at, self.stack[-1] if self.stack else -1, True])
        return len(self.calls) - 1

    def empty(self) -> bool:
        """Whether no part of it was taken so far."""
        return not self._parts

    def take(self, batch: Batch, counted: Counted) -> None:
        """The batch's leaves follow those that are here; `counted` will have a row a tensor of the batch."""
        self._parts.append((batch, counted))

    def read_out(self) -> Seen:
        """All parts as one, after the wait for their counts."""
        if len(self._parts) == 1:
            batch, counted = self._parts[0]
            only = np.asarray(batch.index, np.int64)
            return Seen(batch.labels, batch.leaf_call, only, counted.rows(), batch.outputs(), [batch])
        batches = [batch for batch, _ in self._parts]
        rows = [counted.rows() for _, counted in self._parts]
        begins = np.cumsum([0, *map(len, rows)])
        index = [np.asarray(batch.index, np.int64) for batch in batches]
        moved = [np.where(one >= 0, one + begin, -1) for one, begin in zip(index, begins, strict=False)]
        return Seen(
            [label for batch in batches for label in batch.labels],
            [call for batch in batches for call in batch.leaf_call],
            np.concatenate(moved),
            np.concatenate(rows),
            np.concatenate([batch.outputs() for batch in batches]),
            batches,
        )


@dataclass(frozen=True)
class Seen:
    """A whole forward: leaves in the order of time, and for each its row of `counts` (-1: overwritten before it could be)."""

    labels: list[Label]
    leaf_call: list[int]
    index: np.ndarray
    counts: np.ndarray  # (distinct tensors, kinds)
    put_out: np.ndarray  # which of these some module put out
    batches: list[Batch]

    def shapes(self) -> list[tuple[torch.Size, torch.dtype]]:
        """Of each row of counts."""
        return [one for batch in self.batches for one in batch.shapes()]

    def leaf_dtypes(self) -> list[str]:
        shapes = self.shapes()
        return [str(shapes[u][1]).replace("torch.", "") if u >= 0 else "" for u in self.index]

    def leaf_numel(self) -> np.ndarray:
        sizes = np.asarray([*(shape.numel() for shape, _ in self.shapes()), 0])
        found: np.ndarray = sizes[self.index]  # -1 takes the added zero
        return found


class Batch:
    """Distinct tensors, and leaves that point into them. `written` is None where each tensor is counted at once."""

    def __init__(self, written: Written | None) -> None:
        self.tensors: Sequence[Tensor] = []
        self.labels: list[Label] = []
        self.leaf_call: list[int] = []
        self.index: Sequence[int] | np.ndarray = []
        self.sources: list[Source | None] = []  # None: deeper than a template looks
        self.overwritten = 0
        self.ever_written = 0  # distinct tensors whose version is not 0
        self._written = written
        self._known: dict[int, int] = {}
        self._shapes: list[tuple[torch.Size, torch.dtype]] | None = None
        self.put_out: np.ndarray | None = None

    def add_inputs(self, at: int, args: Any, kwargs: Any, call: int, plain: Label, place: int) -> None:
        for number, value in enumerate(args):
            label = plain if not number else (at, IN, f"args[{number}]")
            self.add(value, label, call, (place + 1, number))
        for name, value in kwargs.items():
            if not is_skipped(name):
                self.add(value, (at, IN, name), call, (place + 2, name))

    def add_output(self, at: int, value: Any, call: int, plain: Label, source: Source) -> None:
        self.add(value, (at, OUT, "") if isinstance(value, Mapping) else plain, call, source)

    def add(self, value: Any, label: Label, call: int, source: Source) -> None:
        if isinstance(value, Tensor):
            self._tensor(value, label, call, source, source[0])
            return
        for name, tensor in leaves(value, label[2]) if value is not None else ():
            if tensor is not None:
                inside = _inside(value, tensor, source)
                self._tensor(tensor, (label[0], label[1], name), call, inside, source[0])

    def _tensor(self, tensor: Tensor, label: Label, call: int, source: Source | None, place: int) -> None:
        u = self._known.get(id(tensor))
        if u is None:
            if not (tensor.is_floating_point() or tensor.is_complex()):
                return
            u = self._known[id(tensor)] = self._new(tensor, (place, label[2]))
        self.labels.append(label)
        self.leaf_call.append(call)
        self.sources.append(source)
        self.index.append(u)  # type: ignore[union-attr]

    def _new(self, tensor: Tensor, first: tuple[int, str]) -> int:
        if self._written is not None and (version := tensor._version):
            self.ever_written += 1
            if version != self._written.get(first, 0):
                self.overwritten += 1
                return -1
        self.tensors.append(tensor)  # type: ignore[attr-defined]
        return len(self.tensors) - 1

    def outputs(self) -> np.ndarray:
        """For each distinct tensor whether some module put it out."""
        if self.put_out is None:
            sides = np.fromiter((side for _, side, _ in self.labels), np.int8, len(self.labels))
            found = np.zeros(len(self.tensors) + 1, dtype=bool)
            found[np.asarray(self.index, np.int64)[sides == OUT]] = True
            self.put_out = found[:-1]  # -1 marked the added one
        return self.put_out

    def shapes(self) -> list[tuple[torch.Size, torch.dtype]]:
        return self._shapes or [(tensor.shape, tensor.dtype) for tensor in self.tensors]

    def let_go(self) -> None:
        """Keep what is known of the tensors in place of them."""
        self.outputs()
        self._shapes, self.tensors = self.shapes(), []


@dataclass(frozen=True)
class Template:
    """Where the tensors of a forward were.

    Two forwards are equal when the same modules were called, their pools have the same types, and the same places of both hold
    one and the same tensor.
    """

    heads: list[int]  # the modules, as events have them
    pool: Pool
    keys: list[Any]  # lengths and names of arguments
    types: list[type]
    inner: list[Any]  # the same of what lies in tuples and mappings
    distinct: Picker  # from the pool: each tensor that counts, once
    again: Picker  # what is the same object as an earlier one, and that one
    first: Picker
    others: Picker  # tensors of whole numbers and flags, once
    other_dtypes: list[torch.dtype]
    first_leaves: list[tuple[int, str]]  # of each distinct tensor, as `Written` names them
    labels: list[Label]
    leaf_call: list[int]
    index: np.ndarray  # for each leaf, in the order of time, its place among the distinct ones
    put_out: np.ndarray
    calls: list[list[Any]]
    cache_at: tuple[int, str] | None

    @classmethod
    def of(cls, events: list[Any], forward: Forward, batch: Batch) -> Template | None:
        """None for a forward whose tensors lie deeper than a pool reaches, or were overwritten."""
        pool, sources = Pool.of(events)
        values, keys = pool.open(events)
        types = [*map(type, values)]
        within, inner = pool.inside(values)
        values += within
        deep = any(
            _may_hold(values[at])
            for source, at in sources.items()
            if at >= len(types) and not _skipped(source)
        )
        if batch.overwritten or deep or not {*batch.sources} <= sources.keys():
            return None
        places = [sources[source] for source in batch.sources if source is not None]
        first_leaf = {u: n for n, u in reversed([*enumerate(batch.index)])}
        leaves_of = [first_leaf[u] for u in range(len(batch.tensors))]
        distinct = [places[n] for n in leaves_of]
        again, first, others = _same(values, sources, distinct)
        cached = (
            (place, name)
            for place in pool.kwargs_at
            for name in CACHES
            if events[place].get(name) is not None
        )
        return cls(
            events[::3],
            pool,
            keys,
            types,
            inner,
            _picker(distinct),
            _picker(again),
            _picker(first),
            _picker(others),
            [values[at].dtype for at in others],
            [(batch.sources[n][0], batch.labels[n][2]) for n in leaves_of],
            batch.labels,
            batch.leaf_call,
            np.asarray(batch.index, np.int64),
            batch.outputs(),
            forward.calls,
            next(cached, None),
        )

    def read(self, events: list[Any]) -> list[Any] | None:
        """The pool of a forward that may be this one's equal: `distinct` picks tensors from it, which `confirm` judges."""
        if events[::3] != self.heads:
            return None
        values, keys = self.pool.open(events)
        if keys != self.keys or [*map(type, values)] != self.types:
            return None
        within, inner = self.pool.inside(values)
        if inner != self.inner:
            return None
        values += within
        return values

    def confirm(self, values: list[Any], tensors: Sequence[Tensor], written: Written) -> Batch | None:
        """The tensors as a batch; None where they are not as they were."""
        if not all(map(is_, self.again(values), self.first(values))):
            return None
        if len({*map(id, tensors)}) < len(tensors):
            return None
        if [*map(DTYPE, self.others(values))] != self.other_dtypes:
            return None
        versions = [*map(VERSION, tensors)]
        if any(versions) and not self._noted(versions, written):
            return None
        batch = Batch(None)
        batch.tensors, batch.ever_written = tensors, len(versions) - versions.count(0)
        batch.labels, batch.leaf_call, batch.index = self.labels, self.leaf_call, self.index
        batch.put_out = self.put_out
        return batch

    def cache(self, events: list[Any]) -> Any:
        return events[self.cache_at[0]][self.cache_at[1]] if self.cache_at else None

    def _noted(self, versions: list[int], written: Written) -> bool:
        """Whether all that was ever written had been written before it passed."""
        return all(map(int.__eq__, versions, [written.get(leaf, 0) for leaf in self.first_leaves]))


@dataclass(frozen=True)
class Pool:
    """All values that events hold in one list: single ones, arguments one by one, then what lies in tuples and mappings."""

    singles: Picker  # from the events
    args: Picker
    kwargs: Picker
    rows: Picker  # from the values so far: tuples and lists, each object once
    mappings: Picker
    kwargs_at: list[int]

    @classmethod
    def of(cls, events: list[Any]) -> tuple[Pool, dict[Source, int]]:
        """And the place of each source in it."""
        calls = [n for n in range(0, len(events), 3) if 0 <= events[n] < PASSED]
        passed = [n for n in range(0, len(events), 3) if events[n] >= PASSED]
        returned = [n for n in range(0, len(events), 3) if events[n] < 0]
        singles = [n + 1 for n in passed] + [n + 2 for n in passed] + [n + 1 for n in returned]
        args, kwargs = [n + 1 for n in calls], [n + 2 for n in calls]
        sources: list[Source] = [(at,) for at in singles]
        sources += [(at, key) for at in [*args, *kwargs] for key in _keys(events[at])]
        held = {
            source: events[source[0]] if len(source) == 1 else events[source[0]][source[1]]
            for source in sources
        }
        places = {source: n for n, source in enumerate(sources)}
        rows = _unpacked(places, held, (tuple, list))
        mappings = _unpacked(places, held, Mapping)
        pickers = [_picker(at) for at in (singles, args, kwargs, rows, mappings)]
        return cls(pickers[0], pickers[1], pickers[2], pickers[3], pickers[4], kwargs), places

    def open(self, events: list[Any]) -> tuple[list[Any], list[Any]]:
        """(values, lengths and names of the arguments)"""
        args, kwargs = self.args(events), self.kwargs(events)
        keys = [*map(len, args), *map(len, kwargs), *chain.from_iterable(kwargs)]
        values = [
            *self.singles(events),
            *chain.from_iterable(args),
            *chain.from_iterable(map(dict.values, kwargs)),
        ]
        return values, keys

    def inside(self, values: list[Any]) -> tuple[list[Any], list[Any]]:
        """(more values, their lengths, names and types) from `values` of the right types."""
        rows, mappings = self.rows(values), self.mappings(values)
        more = [*chain.from_iterable(rows)]
        for mapping in mappings:
            more += mapping.values()
        return more, [*map(len, rows), *map(len, mappings), *chain.from_iterable(mappings), *map(type, more)]


def _unpacked(places: dict[Source, int], held: dict[Source, Any], kind: Any) -> list[int]:
    """Places of values of this kind, each object once; what lies in them is added to `places`."""
    begins: dict[int, int] = {}
    found, size = [], len({*places.values()})
    for source, value in held.items():
        if not isinstance(value, kind) or _skipped(source):
            continue
        if id(value) not in begins:
            begins[id(value)] = size
            found.append(places[source])
            size += len(value)
        places.update({(*source, key): begins[id(value)] + n for n, key in enumerate(_keys(value))})
    return found


def _keys(value: Any) -> Iterable[Any]:
    return value.keys() if isinstance(value, Mapping) else range(len(value))


def _skipped(source: Source) -> bool:
    """Whether masks or caches lie there."""
    return any(isinstance(key, str) and is_skipped(key) for key in source[1:])


def _may_hold(value: Any) -> bool:
    return isinstance(value, (tuple, list, Mapping)) and len(value) > 0


def _same(
    values: list[Any], places: dict[Source, int], distinct: list[int]
) -> tuple[list[int], list[int], list[int]]:
    """(places of what is there again, the first place of each of these, places of tensors that do not count)"""
    holders = {id(values[at]): at for at in distinct}
    again, first, others = [], [], []
    for at in sorted({at for source, at in places.items() if not _skipped(source)} - {*distinct}):
        if not isinstance(values[at], (Tensor, tuple, list, Mapping)):
            continue
        holder = holders.setdefault(id(values[at]), at)
        if holder != at:
            again.append(at)
            first.append(holder)
        elif isinstance(values[at], Tensor):
            others.append(at)
    return again, first, others


def _picker(places: Sequence[int]) -> Picker:
    """The items at `places` as a tuple; itemgetter gives none for one or no place."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple(items[place] for place in places)


def _inside(value: Any, tensor: Tensor, source: Source) -> Source | None:
    """Where `tensor` lies in a tuple, list or mapping, one level deep; None if deeper."""
    if isinstance(value, Mapping):
        return next(((*source, key) for key, one in value.items() if one is tensor), None)
    if isinstance(value, (tuple, list)):
        return next(((*source, at) for at, one in enumerate(value) if one is tensor), None)
    return None
