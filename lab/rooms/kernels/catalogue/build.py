"""Traces of one or many ranks -> the catalogue: every launch with the op that owns it, every distinct launch
counted.

Two launches are the same when kernel, grid, block, shared memory, registers, bytes of a copy, op, overload,
arguments and phase are the same. Device, stream and rank are not in the key, so tensor parallel ranks fold.
Counts are of what the trace holds and are divided by the forwards that ran, never by the number requested. In
a trace without GPU rows, CPU ops stand in for launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from lab.recordings.integrity.words import bound
from lab.recordings.lacks import Lack
from lab.recordings.ranks import work_of
from lab.recordings.ranks.common import UNKNOWN, together
from lab.rooms.kernels.catalogue.doubts import launches_without_op, stand_ins, uneven_ranks
from lab.rooms.kernels.catalogue.launches import launches_of
from lab.rooms.kernels.catalogue.ops import OpBook
from lab.rooms.kernels.catalogue.rank import RankData, no_launches, read_ranks
from lab.rooms.kernels.catalogue.signatures import signatures_of
from lab.rooms.kernels.catalogue.unique import unique_table
from lab.rooms.kernels.schema import Launch, OpRecord, Signatures
from lab.rooms.kernels.trails import Trail


@dataclass
class Catalogue:
    """All launches, ordered by rank, then time; `sig_id` joins them with `signatures`.

    Column `bound` of `unique` is `at least` where rows are known to be missing.
    """

    ranks: list[RankData]
    launches: list[Launch]
    books: list[OpBook]
    signatures: Signatures
    unique: pd.DataFrame
    problems: list[str]
    waits: dict[tuple[int, int], float] = field(default_factory=dict)  # ms by (waiting, awaited rank)

    @cached_property
    def ops(self) -> list[OpRecord]:
        """The ops that own launches, and those around them, by rank and row."""
        return [record for book in self.books for record in book.records()]

    @property
    def lacks(self) -> list[Lack]:
        """What the recordings of all ranks are missing."""
        return [lack for rank in self.ranks for lack in rank.lacks]

    @property
    def times_are_cpus(self) -> bool:
        """Whether operators on the CPU stand in for the launches of a rank."""
        return not all(rank.on_gpu for rank in self.ranks)

    @property
    def marks(self) -> dict[str, str]:
        """The column that every table ends with: `bound` of its counts and times."""
        return {"bound": self.signatures.bound}


def read_catalogue(
    trails: Sequence[Trail], captures: Sequence[Path] = (), inductor: Sequence[Path] = ()
) -> Catalogue:
    """The catalogue of all ranks. Raises the reader's error for a trace or capture that cannot be read."""
    return put_together(read_ranks(trails, captures=captures, inductor=inductor))


def put_together(ranks: list[RankData]) -> Catalogue:
    """One catalogue of all ranks, on a common zero of time.

    Raises BadDataError for traces without launches.
    """
    starts = [rank.start_ns() for rank in ranks if len(rank.rows)]
    if not starts:
        raise no_launches(ranks)
    zero_ns = min(int(start.min()) for start in starts)
    launches: list[Launch] = []
    books = [OpBook(rank, zero_ns) for rank in ranks]
    for rank, book in zip(ranks, books, strict=True):
        launches += launches_of(rank, book, zero_ns)
    waits = mark_waits(ranks, launches)
    signatures = signatures_of(ranks, books, launches)
    problems = [text for rank in ranks for text in rank.problems]
    problems += [*stand_ins(ranks), *uneven_ranks(signatures), *launches_without_op(launches, ranks)]
    catalogue = Catalogue(
        ranks, launches, books, signatures, unique_table(signatures, launches), problems, waits
    )
    signatures.bound = bound(catalogue.lacks)
    catalogue.unique = catalogue.unique.assign(**catalogue.marks)
    return catalogue


def mark_waits(ranks: Sequence[RankData], launches: Sequence[Launch]) -> dict[tuple[int, int], float]:
    """Set `wait_us` of collectives; returns ms by (waiting rank, awaited rank). Nothing for one rank.

    The time before the last rank has come is no cost of the collective's own.
    """
    works = {rank.rank: work_of(rank.trace, rank.rank) for rank in ranks if rank.on_gpu}
    if len(works) < 2:
        return {}
    all_ranks = together(works)
    by_row: dict[tuple[int, int], float] = {}
    sums: dict[tuple[int, int], float] = {}
    for work, call in zip(all_ranks.works, all_ranks.calls, strict=True):
        wait_us = (call.all_in - work.start[call.row]) / 1000
        for index in np.flatnonzero((wait_us > 0) & (call.last_index != UNKNOWN)).tolist():
            by_row[work.rank, int(call.row[index])] = float(wait_us[index])
            pair = work.rank, all_ranks.ranks[int(call.last_index[index])]
            sums[pair] = sums.get(pair, 0.0) + float(wait_us[index]) / 1000
    for launch in launches:
        launch.wait_us = by_row.get((launch.rank, launch.row), 0.0)
    return sums
