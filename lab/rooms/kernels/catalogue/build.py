"""Traces of one or many ranks -> the catalogue: every launch with the op that owns it, every distinct launch
counted.

Two launches are the same when kernel, grid, block, shared memory, registers, bytes of a copy, op, overload,
arguments and phase are the same. Device, stream and rank are not in the key, so tensor parallel ranks fold.
Counts are of what the trace holds and are divided by the forwards that ran, never by the number requested. In
a trace without GPU rows, CPU ops stand in for launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lab.recordings.integrity.words import bound
from lab.recordings.lacks import Lack
from lab.rooms.kernels.catalogue.doubts import launches_without_op, uneven_ranks
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
    ops: list[OpRecord]
    signatures: Signatures
    unique: pd.DataFrame
    problems: list[str]

    @property
    def lacks(self) -> list[Lack]:
        """What the recordings of all ranks are missing."""
        return [lack for rank in self.ranks for lack in rank.lacks]


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
    zero_ns = min(int(one.min()) for one in starts)
    launches: list[Launch] = []
    ops: list[OpRecord] = []
    for rank in ranks:
        book = OpBook(rank, zero_ns)
        launches += launches_of(rank, book, zero_ns)
        ops += book.records()
    signatures = signatures_of(ranks, launches)
    problems = [text for rank in ranks for text in rank.problems]
    problems += [*uneven_ranks(signatures), *launches_without_op(launches, ranks)]
    at_least = bound([lack for rank in ranks for lack in rank.lacks])
    unique = unique_table(signatures, launches, at_least)
    return Catalogue(ranks, launches, ops, signatures, unique, problems)
