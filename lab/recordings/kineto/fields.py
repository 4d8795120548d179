"""The fields of one table's events as numpy columns, whichever way the events were decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import compress
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from lab.recordings.kineto.decode import NO_SIZE, Args
from lab.recordings.kineto.values import INT64, ColumnEncoder

_ARGS, _CAT = attrgetter("args"), attrgetter("cat")
Sizes = tuple[int, ...]


class Fields(Protocol):
    """Fields of n events, by the names of `events.Event` and `events.Args`."""

    def __len__(self) -> int: ...

    def ids(self, name: str) -> np.ndarray:
        """pid or tid (n,): the number, or -2 minus the id of a text."""

    def names(self) -> np.ndarray:
        """Ids of the events' names (n,)."""

    def by_category(self, value_of: Callable[[str], Any], kind: type) -> np.ndarray:
        """`value_of` each event's category (n,), as numbers of `kind`."""

    def ints(self, name: str) -> np.ndarray:
        """A number of the arguments (n,)."""

    def texts(self, name: str) -> np.ndarray:
        """Ids of a text of the arguments (n,), -1 where there is none."""

    def raws(self, name: str) -> np.ndarray:
        """Ids of a list of the arguments as compact JSON (n,), -1 where there is none."""

    def sizes(self, name: str) -> np.ndarray:
        """grid or block (n, 3), -1 where there is none."""

    def collectives(self) -> tuple[np.ndarray, Fields]:
        """The events (m,) that describe a collective, and their fields."""

    def copies(self) -> Iterator[tuple[int, str, str, str]]:
        """(event, copy kind, source, target) of each event that has them."""

    def geometry(self) -> Iterator[tuple[int, Sizes]]:
        """(correlation, grid, block and shared memory) of each event that has a grid."""


class Decoded:
    """Fields of event structs, the plain form."""

    def __init__(self, events: Sequence[Any], encode: ColumnEncoder) -> None:
        self._events, self._encode = events, encode

    @cached_property
    def _args(self) -> list[Args]:
        return list(map(_ARGS, self._events))

    def __len__(self) -> int:
        return len(self._events)

    def ids(self, name: str) -> np.ndarray:
        return self._encode.numbers_or_texts(self._events, attrgetter(name))

    def names(self) -> np.ndarray:
        return self._encode.texts(self._events, attrgetter("name"))

    def by_category(self, value_of: Callable[[str], Any], kind: type) -> np.ndarray:
        return np.fromiter(map(value_of, map(_CAT, self._events)), kind, len(self))

    def ints(self, name: str) -> np.ndarray:
        return self._encode.ints(self._args, name)

    def texts(self, name: str) -> np.ndarray:
        return self._encode.texts(self._args, attrgetter(name))

    def raws(self, name: str) -> np.ndarray:
        return self._encode.raws(self._args, name)

    def sizes(self, name: str) -> np.ndarray:
        return self._encode.triples(self._args, name).reshape(-1, 3)

    def collectives(self) -> tuple[np.ndarray, Decoded]:
        index = self._with_text("collective")
        return np.array(index, dtype=np.int64), Decoded([self._events[at] for at in index], self._encode)

    def copies(self) -> Iterator[tuple[int, str, str, str]]:
        for row in self._with_text("copy_kind"):
            args = self._args[row]
            yield row, args.copy_kind, args.src_kind, args.dst_kind

    def geometry(self) -> Iterator[tuple[int, Sizes]]:
        for args in self._args:
            if args.grid is not NO_SIZE and args.correlation in INT64:
                sizes = (*args.grid, *args.block, args.smem_bytes)
                yield args.correlation, tuple(size if size in INT64 else -1 for size in sizes)

    def _with_text(self, name: str) -> list[int]:
        """The events whose argument is a text and not empty."""
        return list(compress(range(len(self)), map(attrgetter(name), self._args)))
