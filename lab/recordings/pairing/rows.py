"""The recorded calls of all ranks in one table, and which of them can belong together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lab.perfmodel.communication import communication, kind_in
from lab.recordings.tables import Table
from lab.stats.columns import objects

# No rank leaves such a call before the last has entered it, so their times overlap and their ends agree.
BLOCKING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

# Every rank of such a call reports the same sizes.
SAME_SIZES = ("all_reduce", "all_gather", "reduce_scatter")


def kind_of(collective: str, kernel: str = "") -> str:
    """all_reduce, all_gather, ... from the profiler's name, otherwise the kernel's; "" if unknown."""
    kind = kind_in(collective)
    if kind or not kernel:
        return kind
    kernel_kind = communication(kernel)
    return kernel_kind.kind if kernel_kind else kind_in(kernel)


def is_blocking(kind: str, kernel: str = "") -> bool:
    """Whether no rank leaves the call before all have entered it."""
    kernel_kind = communication(kernel) if kernel else None
    return kind in BLOCKING and (kernel_kind is None or kernel_kind.blocking)


def bus_factor(kind: str, group_size: int) -> float:
    """Bus bandwidth over algorithm bandwidth; NaN for an unknown kind or size.

    Source: NVIDIA/nccl-tests `doc/PERFORMANCE.md`.
    """
    if group_size < 1 or not kind:
        return float("nan")
    if kind == "all_reduce":
        return 2 * (group_size - 1) / group_size
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (group_size - 1) / group_size
    return 1.0


# (ranks, name, "") of a process group; without metadata ("", "", the ordinal of the stream).
GroupKey = tuple[str, str, Any]
# Ranks that a send goes from and to; () for collectives, UNNAMED for sends and receives of unknown partners.
Route = tuple[int, ...]
UNNAMED: Route = (-1, -1)


class CallRows:
    """All rows of all ranks in one table, with small integers for what is compared often.

    A kernel of several sends and receives has one row for each; `source` is the kernel's row. Pairing marks
    in `buffered` the sends that wait for no receive.
    """

    def __init__(self, ranks: Mapping[int, Table]) -> None:
        self.ranks = tuple(sorted(ranks))
        tables = [ranks[rank] for rank in self.ranks]
        filled = [table for table in tables if len(table)] or tables[:1]
        names = list(filled[0]) if filled else []
        self.kernels = {name: np.concatenate([getattr(t, name) for t in filled]) for name in names}
        lengths = [len(table) for table in tables]
        kernel_rank = np.repeat(np.array(self.ranks, dtype=np.int64), lengths)
        self.num_kernels = len(kernel_rank)
        self.source, routes = self._legs(kernel_rank.tolist())
        self.rank = kernel_rank[self.source]
        self.rank_index = np.repeat(np.arange(len(tables)), lengths)[self.source]
        self.start, self.dur, self.seq, self.step = map(self.column, ("ts_ns", "dur_ns", "seq", "step"))
        calls = [*self._rows("collective", "kernel")]
        kind_of_call = {pair: kind_of(*pair) for pair in set(calls)}
        blocking = {pair: is_blocking(kind, pair[1]) for pair, kind in kind_of_call.items()}
        self.kinds = objects([kind_of_call[pair] for pair in calls])
        self.blocking = np.array([blocking[pair] for pair in calls], dtype=bool)
        self.p2p = self.kinds == "p2p"
        self.buffered = np.zeros(len(calls), dtype=bool)
        self.signature = numbered(self._signatures())[0]
        routes = [route if p2p else () for route, p2p in zip(routes, self.p2p.tolist(), strict=True)]
        self.group, groups = numbered(zip(self._groups(), routes, strict=True))
        self.groups, self.routes = [key for key, _ in groups], [route for _, route in groups]
        self._by_group = self._launch_order()
        self.not_aligned = 0

    def _legs(self, kernel_rank: Sequence[int]) -> tuple[np.ndarray, list[Route]]:
        """The kernel (n,) of each row, and from which rank to which it goes."""
        source: list[int] = []
        routes: list[Route] = []
        exchanges = self.kernels.get("exchanges", [()] * len(kernel_rank))
        for kernel, (rank, legs) in enumerate(zip(kernel_rank, exchanges, strict=True)):
            # A rank that sends to itself copies, and no other rank waits for that.
            ends: list[Route] = [
                (rank, peer) if sends else (peer, rank) for sends, peer in legs if peer != rank
            ]
            routes += ends or [UNNAMED]
            source += [kernel] * max(len(ends), 1)
        return np.array(source, dtype=np.int64), routes

    def column(self, name: str) -> np.ndarray:
        values = self.kernels.get(name, np.empty(0, dtype=np.int64))
        return values[self.source] if len(values) else values

    def of_group(self, group: int) -> np.ndarray:
        """Rows (m,) of a group, rank by rank, each rank's in the order of their launch."""
        return self._by_group[group]

    def members_of(self, group: int) -> list[int]:
        """The ranks that take part in the calls of a group."""
        route = self.routes[group]
        return sorted({*route}) if route and route != UNNAMED else ranks_of(self.groups[group][0], self.ranks)

    def _rows(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """These columns, row by row."""
        return zip(*(self.column(name).tolist() for name in names), strict=True)

    def _launch_order(self) -> list[np.ndarray]:
        # Streams run in the order of launch; where two streams serve one group only the launch shows it.
        launch = self.column("correlation")
        unknown = np.bincount(self.group, weights=launch < 0, minlength=len(self.groups)) > 0
        when = np.where(unknown[self.group], self.start, launch) if len(launch) else launch
        order = np.lexsort((self.start, when, self.rank_index, self.group))
        return np.split(order, np.searchsorted(self.group[order], np.arange(1, len(self.groups))))

    def _signatures(self) -> Iterator[tuple[Any, ...]]:
        columns = self._rows("collective", "kernel", "dtype", "in_nelems", "out_nelems")
        for kind, (collective, kernel, dtype, *size) in zip(self.kinds, columns, strict=True):
            if kind == "p2p":  # what one rank sends, the other receives
                yield kind, dtype, max(size)
                continue
            name = collective or kernel
            # Sizes of other kinds differ between ranks (splits of all-to-all): they tell no calls apart.
            yield (name, dtype, *size) if kind in SAME_SIZES else (name, dtype)

    def _groups(self) -> Iterator[GroupKey]:
        ordinals: dict[tuple[int, int], int] = {}
        nth: dict[int, int] = {}
        columns = self._rows("pg_ranks", "pg_name", "stream")
        for index, (ranks, name, stream) in zip(self.rank_index.tolist(), columns, strict=True):
            if ranks or name:
                yield ranks, name, ""
                continue
            if (index, stream) not in ordinals:
                ordinals[index, stream] = nth[index] = nth.get(index, -1) + 1
            yield "", "", ordinals[index, stream]


def ranks_of(text: str, all_ranks: Sequence[int]) -> list[int]:
    """The ranks of a group from the profiler's text, such as `[0, 1, 7]`; all given ones if it has none."""
    # Kineto shortens a long list of ranks with dots, and then it names no group.
    if "..." in text or not re.search(r"\d", text) or re.search(r"\d{8}", text):
        return list(all_ranks)
    return sorted({int(digits) for digits in re.findall(r"\d{1,7}", text)})


def numbered(keys: Iterable[Any]) -> tuple[np.ndarray, list[Any]]:
    """Equal keys -> equal numbers (n,), counted from 0 in order of appearance, and the keys."""
    numbers: dict[Any, int] = {}
    codes = [numbers.setdefault(key, len(numbers)) for key in keys]
    return np.array(codes, dtype=np.int64), list(numbers)


def running_count(codes: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """How many equal codes (n,) stand before each; keys (n,) set the order, the last of them first."""
    order = np.lexsort((*keys, codes))
    ordered = codes[order]
    count = np.empty(len(codes), dtype=np.int64)
    count[order] = np.arange(len(codes)) - np.searchsorted(ordered, ordered)
    return count
