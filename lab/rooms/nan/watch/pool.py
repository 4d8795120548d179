"""All values that the events of a forward hold, in one list that a few list comprehensions fill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

from lab.rooms.nan.watch.batch import Source
from lab.rooms.nan.watch.leaves import is_cache_name

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
        sources: list[Source] = [(at,) for at in singles]
        sources += [(at, key) for at in [*args, *kwargs] for key in _keys(events[at])]
        held = {
            source: events[source[0]] if len(source) == 1 else events[source[0]][source[1]]
            for source in sources
        }
        places = {source: n for n, source in enumerate(sources)}
        rows = _unpacked(places, held, (tuple, list))
        mappings = _unpacked(places, held, Mapping)
        pickers = [picker(at) for at in (singles, args, kwargs, rows, mappings)]
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
    """Indices of values of this kind, each object once; what lies in them is added to `places`."""
    begins: dict[int, int] = {}
    found, size = [], len({*places.values()})
    for source, value in held.items():
        if not isinstance(value, kind) or skipped(source):
            continue
        if id(value) not in begins:
            begins[id(value)] = size
            found.append(places[source])
            size += len(value)
        places.update({(*source, key): begins[id(value)] + n for n, key in enumerate(_keys(value))})
    return found


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
