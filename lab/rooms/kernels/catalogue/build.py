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

import pandas as pd

from lab.core.words import plural
from lab.recordings.integrity.words import bound
from lab.recordings.lacks import Lack
from lab.rooms.kernels.catalogue.doubts import launches_without_op, stand_ins, uneven_ranks
from lab.rooms.kernels.catalogue.launches import launches_of
from lab.rooms.kernels.catalogue.ops import OpBook
from lab.rooms.kernels.catalogue.parts import Ask
from lab.rooms.kernels.catalogue.rank import RankData, no_launches, read_ranks
from lab.rooms.kernels.catalogue.signatures import signatures_of
from lab.rooms.kernels.catalogue.unique import unique_table
from lab.rooms.kernels.catalogue.waits import mark_waits
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
    def part(self) -> str:
        """The part of the recordings that was asked for, "" for all of them."""
        return self.signatures.part

    @property
    def times_are_cpus(self) -> bool:
        """Whether operators on the CPU stand in for the launches of a rank."""
        return not all(rank.on_gpu for rank in self.ranks)

    @property
    def marks(self) -> dict[str, str]:
        """Columns that every table ends with: `bound` of its counts and times, the part if there is one."""
        return {"bound": self.signatures.bound} | ({"part": self.part} if self.part else {})

    @property
    def left_out(self) -> str:
        """What the part that was asked for leaves out, in one sentence; "" without such a part."""
        if not self.part:
            return ""
        rows = [
            (rank.trace.ops if rank.on_gpu else rank.trace.operators).dur_ns[rank.rows] for rank in self.ranks
        ]
        all_ms, kept_ms = (
            sum(int(one.sum()) for one in rows) / 1e6,
            sum(one.dur_us for one in self.launches) / 1e3,
        )
        whole = plural(sum(map(len, rows)), "launch")
        return (
            f"part: {self.part}: {len(self.launches):,} of {whole}, {kept_ms:.3f} of {all_ms:.3f} ms; "
            "the rest is left out of all figures"
        )


def read_catalogue(
    trails: Sequence[Trail],
    captures: Sequence[Path] = (),
    inductor: Sequence[Path] = (),
    ask: Ask | None = None,
) -> Catalogue:
    """The catalogue of all ranks, or of the part of them that is asked for.

    Raises the reader's error for a trace or capture that cannot be read, MissingError for a part that is not
    in any.
    """
    return put_together(read_ranks(trails, captures=captures, inductor=inductor, ask=ask))


def put_together(ranks: list[RankData]) -> Catalogue:
    """One catalogue of all ranks, on a common zero of time.

    Raises BadDataError for traces without launches.
    """
    starts = [rank.start_ns() for rank in ranks if len(rank.rows)]
    if not starts:
        raise no_launches(ranks)
    zero_ns = min(int(one.min()) for one in starts)
    launches: list[Launch] = []
    books = [OpBook(rank, zero_ns) for rank in ranks]
    for rank, book in zip(ranks, books, strict=True):
        launches += launches_of(rank, book, zero_ns)
    waits = mark_waits(ranks, launches)
    signatures = signatures_of(ranks, books, launches)
    problems = [text for rank in ranks for text in rank.problems]
    problems += [*stand_ins(ranks), *uneven_ranks(signatures), *launches_without_op(launches, ranks)]
    found = Catalogue(ranks, launches, books, signatures, unique_table(signatures, launches), problems, waits)
    signatures.bound = bound(found.lacks)
    signatures.part = next((rank.part.text for rank in ranks if rank.part is not None), "")
    found.unique = found.unique.assign(**found.marks)
    return found
