"""Where the tensors of a forward were, so that an equal one is read at once.

Reading events one by one costs a microsecond or two each, a fifth of a decode step of a 7B model. A
`Template` remembers where the tensors of an equal forward were, so that the next one is read by a few list
comprehensions.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.rooms.nan.watch.forward import Batch, Forward, Label, Source, Written
from lab.rooms.nan.watch.leaves import REAL, SCALARS, is_cache, is_cache_name

VERSION, DTYPE = attrgetter("_version"), attrgetter("dtype")


@dataclass(frozen=True)
class Template:
    """Where the tensors of a forward were.

    Two forwards are equal when the same modules were called, their pools have the same types, and the same
    places of both hold one and the same tensor.
    """

    heads: list[int]  # the modules, as events have them
    pool: Pool
    keys: list[Any]  # lengths and names of arguments
    types: list[type]
    inner: list[Any]  # the same of what lies in tuples and mappings
    distinct: Picker  # from the pool: each tensor that counts, once
    again: Picker  # what is the same object as an earlier one, and that one
    originals: Picker
    not_counted: Picker  # tensors of whole numbers and flags, once
    other_dtypes: list[torch.dtype]
    first_leaves: list[tuple[int, str]]  # of each distinct tensor, as `Written` names them
    labels: list[Label]
    leaf_call: list[int]
    index: np.ndarray  # for each leaf, in the order of time, its place among the distinct ones
    put_out: np.ndarray
    calls: list[list[Any]]
    caches_at: list[tuple[int, str | int, int]]  # call, input, and where its arguments are
    empty: Picker  # rows and mappings inside of others: what fills one lies deeper than the pool
    floats: Picker  # numbers of Python, which are read again
    unseen: Tally[tuple[int, str, str]]
    num_bytes: int
    fp8: bool
    dtypes: frozenset[torch.dtype]  # of the distinct ones, and all usual ones

    @classmethod
    def of(cls, events: list[Any], forward: Forward, batch: Batch) -> Template | None:
        """A template of this forward; None if tensors lie deeper than a pool reaches or were overwritten."""
        if batch.odd or batch.overwritten:
            return None
        pool, sources = Pool.of(events)
        values, keys = pool.open(events)
        types = [*map(type, values)]
        within, inner = pool.inside(values)
        values += within
        rows = [
            index
            for source, index in sources.items()
            if index >= len(types)
            and not skipped(source)
            and isinstance(values[index], (tuple, list, Mapping))
        ]
        deep = any(len(values[index]) for index in rows)
        unread = (values[index] for source, index in sources.items() if not skipped(source))
        if deep or not all(map(_is_plain, unread)) or not {*batch.sources} <= sources.keys():
            return None
        places = [sources[source] for source in batch.sources if source is not None]
        first_leaf = {u: n for n, u in reversed([*enumerate(batch.index)])}
        leaves_of = [first_leaf[u] for u in range(len(batch.tensors))]
        distinct = [places[n] for n in leaves_of]
        again, originals, not_counted = _same(values, sources, distinct)
        return cls(
            events[::3],
            pool,
            keys,
            types,
            inner,
            picker(distinct),
            picker(again),
            picker(originals),
            picker(not_counted),
            [values[index].dtype for index in not_counted],
            [(batch.sources[n][0], batch.labels[n][2]) for n in leaves_of],
            batch.labels,
            batch.leaf_call,
            np.asarray(batch.index, np.int64),
            batch.outputs(),
            forward.calls,
            [
                (call, name, index + (2 if isinstance(name, str) else 1))
                for (call, name, _), index in zip(forward.caches, forward.caches_at, strict=True)
            ],
            picker(rows),
            picker(
                [
                    index
                    for source, index in sources.items()
                    if isinstance(values[index], float) and not skipped(source)
                ]
            ),
            batch.unseen,
            batch.bytes(),
            batch.fp8,
            REAL.union(map(DTYPE, batch.tensors)),
        )

    def reads(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are of types that it has, or of usual ones."""
        return self.dtypes.issuperset(map(DTYPE, tensors))

    def read(self, events: list[Any]) -> list[Any] | None:
        """The pool of a forward that may equal this one; None if it differs.

        `distinct` picks tensors from it, which `confirm` checks.
        """
        if events[::3] != self.heads:
            return None
        values, keys = self.pool.open(events)
        if keys != self.keys or [*map(type, values)] != self.types:
            return None
        within, inner = self.pool.inside(values)
        if inner != self.inner:
            return None
        values += within
        return None if any(map(len, self.empty(values))) else values

    def confirm(self, values: list[Any], tensors: Sequence[Tensor], written: Written) -> Batch | None:
        """The tensors as a batch; None if they are not arranged as in the template."""
        if not all(map(is_, self.again(values), self.originals(values))):
            return None
        if len({*map(id, tensors)}) < len(tensors):
            return None
        if [*map(DTYPE, self.not_counted(values))] != self.other_dtypes:
            return None
        if not all(map(math.isfinite, self.floats(values))):
            return None
        return self.confirm_versions(tensors, written)

    def batch(self, tensors: Sequence[Tensor], ever_written: int) -> Batch:
        """These tensors, arranged as in the template."""
        batch = Batch.__new__(Batch)
        vars(batch).update(self.same, tensors=tensors, ever_written=ever_written)
        return batch

    @cached_property
    def same(self) -> dict[str, Any]:
        """What all batches of this template have in common."""
        batch = Batch(None)
        batch.labels, batch.leaf_call, batch.index = self.labels, self.leaf_call, self.index
        batch.put_out, batch.unseen, batch.num_bytes = self.put_out, self.unseen, self.num_bytes
        batch.fp8 = self.fp8
        return vars(batch)

    def confirm_versions(self, tensors: Sequence[Tensor], written: Written) -> Batch | None:
        """These tensors as a batch; None if some were written after they passed."""
        versions = [*map(VERSION, tensors)]
        if any(versions) and not self._noted(versions, written):
            return None
        return self.batch(tensors, len(versions) - versions.count(0))

    def tell(self, forward: Forward, events: list[Any]) -> None:
        """What an equal forward's calls are, and their caches."""
        forward.calls = self.calls
        forward.caches = [(call, name, events[place][name]) for call, name, place in self.caches_at]

    def _noted(self, versions: list[int], written: Written) -> bool:
        """Whether everything that was ever written had been written before it passed."""
        return all(map(int.__eq__, versions, [written.get(leaf, 0) for leaf in self.first_leaves]))


def _is_plain(value: Any) -> bool:
    """Whether all that this value can hold is in the pool, or is not a number."""
    return (
        isinstance(value, (Tensor, tuple, list, Mapping, float, *SCALARS))
        or callable(value)
        or is_cache(value)
    )


def _same(
    values: list[Any], places: dict[Source, int], distinct: list[int]
) -> tuple[list[int], list[int], list[int]]:
    """(indices of repeated objects, the first index of each, indices of tensors that do not count)"""
    holders = {id(values[index]): index for index in distinct}
    repeated, originals, not_counted = [], [], []
    for index in sorted({index for source, index in places.items() if not skipped(source)} - {*distinct}):
        if not isinstance(values[index], (Tensor, tuple, list, Mapping)):
            continue
        holder = holders.setdefault(id(values[index]), index)
        if holder != index:
            repeated.append(index)
            originals.append(holder)
        elif isinstance(values[index], Tensor):
            not_counted.append(index)
    return repeated, originals, not_counted


PASSED = 1 << 28  # added to a module's number where its call and its return are one event
Picker = Callable[[Sequence[Any]], tuple[Any, ...]]


@dataclass(frozen=True)
class Pool:
    """All values that events hold, in one list.

    First single ones, then arguments one by one, then what lies in tuples and mappings.
    """

    singles: Picker  # from the events
    args: Picker
    kwargs: Picker
    rows: Picker  # from the values so far: tuples and lists, each object once
    mappings: Picker
    kwargs_at: list[int]

    @classmethod
    def of(cls, events: list[Any]) -> tuple[Pool, dict[Source, int]]:
        """The pool, and the index of each source in it."""
        calls = [n for n in range(0, len(events), 3) if 0 <= events[n] < PASSED]
        passed = [n for n in range(0, len(events), 3) if events[n] >= PASSED]
        returned = [n for n in range(0, len(events), 3) if events[n] < 0]
        singles = [n + 1 for n in passed] + [n + 2 for n in passed] + [n + 1 for n in returned]
        args, kwargs = [n + 1 for n in calls], [n + 2 for n in calls]
        sources: list[Source] = [(index,) for index in singles]
        sources += [(index, key) for index in [*args, *kwargs] for key in _keys(events[index])]
        held = {
            source: events[source[0]] if len(source) == 1 else events[source[0]][source[1]]
            for source in sources
        }
        places = {source: n for n, source in enumerate(sources)}
        rows = _unpacked(places, held, (tuple, list))
        mappings = _unpacked(places, held, Mapping)
        pickers = [picker(index) for index in (singles, args, kwargs, rows, mappings)]
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
        inner = [*chain.from_iterable(rows)]
        for mapping in mappings:
            inner += mapping.values()
        return inner, [
            *map(len, rows),
            *map(len, mappings),
            *chain.from_iterable(mappings),
            *map(type, inner),
        ]


def _unpacked(places: dict[Source, int], held: dict[Source, Any], kind: Any) -> list[int]:
    """Indices of values of this kind, each object once; what lies in them is added to `places`."""
    begins: dict[int, int] = {}
    indices, size = [], len({*places.values()})
    for source, value in held.items():
        if not isinstance(value, kind) or skipped(source):
            continue
        if id(value) not in begins:
            begins[id(value)] = size
            indices.append(places[source])
            size += len(value)
        places.update({(*source, key): begins[id(value)] + n for n, key in enumerate(_keys(value))})
    return indices


def _keys(value: Any) -> Iterable[Any]:
    return value.keys() if isinstance(value, Mapping) else range(len(value))


def skipped(source: Source) -> bool:
    """Whether a cache lies there."""
    return any(isinstance(key, str) and is_cache_name(key) for key in source[1:])


def picker(places: Sequence[int]) -> Picker:
    """The items at `places` as a tuple; itemgetter gives none for one or no place."""
    if len(places) > 1:
        return itemgetter(*places)
    if not places:
        return lambda items: ()
    only = places[0]
    return lambda items: (items[only],)
