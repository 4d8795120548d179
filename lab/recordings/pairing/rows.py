"""The recorded calls of all ranks in one table, and which of them belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.recordings.pairing.kinds import SAME_SIZES, is_blocking, kind_of
from lab.recordings.tables import Table


class CallRows:
    """All rows of all ranks in one table, with small integers for what is compared often."""

    def __init__(self, ranks: Mapping[int, Table]) -> None:
        self.ranks = tuple(sorted(ranks))
        tables = [ranks[rank] for rank in self.ranks]
        filled = [table for table in tables if len(table)] or tables[:1]
        names = list(filled[0]) if filled else []
        self.columns = {name: np.concatenate([getattr(t, name) for t in filled]) for name in names}
        lengths = [len(table) for table in tables]
        self.rank_index = np.repeat(np.arange(len(tables)), lengths)
        self.rank = np.repeat(np.array(self.ranks, dtype=np.int64), lengths)
        self.start = self.column("ts_ns")
        self.dur = self.column("dur_ns")
        self.seq = self.column("seq")
        self.step = self.column("step")
        calls = list(zip(self._list("collective"), self._list("kernel"), strict=True))
        known = {pair: kind_of(*pair) for pair in set(calls)}
        blocking = {pair: is_blocking(kind, pair[1]) for pair, kind in known.items()}
        self.kinds = [known[pair] for pair in calls]
        self.blocking = np.array([blocking[pair] for pair in calls], dtype=bool)
        self.p2p = np.array([kind == "p2p" for kind in self.kinds], dtype=bool)
        self.signature = numbered(self._signatures())[0]
        self.group, self.groups = numbered(self._groups())
        self.num_groups = len(self.groups)
        self._by_group = np.split(*self._launch_order())
        self.not_aligned = 0

    def column(self, name: str) -> np.ndarray:
        return self.columns.get(name, np.empty(0, dtype=np.int64))

    def of_group(self, group: int) -> np.ndarray:
        """Rows (m,) of a group, rank by rank, each rank's in the order of their launch."""
        return self._by_group[group]

    def _list(self, name: str) -> list[Any]:
        found: list[Any] = self.column(name).tolist()
        return found

    def _launch_order(self) -> tuple[np.ndarray, np.ndarray]:
        # Streams run in the order of launch; where two streams serve one group only the launch shows it.
        launch = self.column("correlation")
        unknown = np.bincount(self.group, weights=launch < 0, minlength=self.num_groups) > 0
        when = np.where(unknown[self.group], self.start, launch) if len(launch) else launch
        order = np.lexsort((self.start, when, self.rank_index, self.group))
        return order, np.searchsorted(self.group[order], np.arange(1, self.num_groups))

    def _signatures(self) -> Iterator[tuple[Any, ...]]:
        sizes = zip(self._list("in_nelems"), self._list("out_nelems"), strict=True)
        labels = zip(self._list("collective"), self._list("dtype"), self._list("kernel"), strict=True)
        for kind, size, (collective, dtype, kernel) in zip(self.kinds, sizes, labels, strict=True):
            if kind == "p2p":  # what one rank sends, the other receives
                yield kind, dtype, max(size)
                continue
            name = collective or kernel
            yield (name, dtype, size) if kind in SAME_SIZES else (name, dtype)

    def _groups(self) -> Iterator[tuple[Any, ...]]:
        """(ranks, name, "") of a process group; without metadata ("", "", the ordinal of the stream)."""
        streams: dict[tuple[int, int], int] = {}
        nth: dict[int, int] = {}
        groups = zip(self._list("pg_ranks"), self._list("pg_name"), strict=True)
        where = zip(self.rank_index.tolist(), self._list("stream"), strict=True)
        for (ranks, name), (index, stream) in zip(groups, where, strict=True):
            if ranks or name:
                yield ranks, name, ""
                continue
            if (index, stream) not in streams:
                streams[index, stream] = nth[index] = nth.get(index, -1) + 1
            yield "", "", streams[index, stream]


@dataclass(frozen=True)
class Match:
    """Which rows are one call: `call` (m,) numbers the calls of a group from 0, -1 for none."""

    call: np.ndarray
    confidence: str


NO_MATCH = Match(np.empty(0, dtype=np.int64), "")


def numbered(keys: Iterable[Any]) -> tuple[np.ndarray, list[Any]]:
    """Equal keys -> equal numbers (n,), counted from 0 in order of appearance, and the keys."""
    numbers: dict[Any, int] = {}
    codes = [numbers.setdefault(key, len(numbers)) for key in keys]
    return np.array(codes, dtype=np.int64), list(numbers)


def running_count(codes: np.ndarray) -> np.ndarray:
    """How many equal codes (n,) stand before each."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    first = np.searchsorted(ordered, ordered)
    count = np.empty(len(codes), dtype=np.int64)
    count[order] = np.arange(len(codes)) - first
    return count
