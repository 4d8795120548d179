"""What is in doubt: ranks with unequal counts, launches without an op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from lab.core.words import plural
from lab.recordings.integrity.words import bound
from lab.recordings.lacks import Lack
from lab.recordings.ranks import work_of
from lab.recordings.ranks.common import UNKNOWN, together
from lab.rooms.kernels.catalogue.ops import OpBook, launches_of
from lab.rooms.kernels.catalogue.rank import RankData, no_launches, read_ranks
from lab.rooms.kernels.catalogue.signatures import modules_of, ranks_text, signatures_of, unique_table
from lab.rooms.kernels.schema import Launch, OpRecord, Signatures
from lab.rooms.kernels.trails import Trail

MARKED = ("prefill", "decode")


def uneven_ranks(signatures: Signatures) -> list[str]:
    """One sentence if ranks launched the same thing unequally often; tensor parallel ranks never do."""
    if len(signatures.ranks) < 2:
        return []
    odd = [
        signature
        for signature in signatures.signatures
        if signature.phase in MARKED
        and (
            len(signature.count_by_rank) != len(signatures.ranks)
            or len(set(signature.count_by_rank.values())) > 1
        )
    ]
    if not odd:
        return []
    worst = ", ".join(f"{signature.kernel} ({ranks_text(signature.count_by_rank)})" for signature in odd[:3])
    return [
        f"{len(odd):,} of {plural(len(signatures.signatures), 'distinct launch')} with different counts "
        f"on different ranks: {worst}"
    ]


def stand_ins(ranks: list[RankData]) -> list[str]:
    """A sentence for each rank whose launches are operators of the CPU though it used a GPU."""
    lost = [rank for rank in ranks if not rank.on_gpu and any(lack.axis == "gpu" for lack in rank.lacks)]
    return [
        f"{rank.path.name}: no GPU row was recorded: operators on the CPU stand in for its launches, and "
        "their times are the CPU's"
        for rank in lost
    ]


def launches_without_op(launches: list[Launch], ranks: list[RankData]) -> list[str]:
    """A sentence with their number and share of time, for replayed ones and for others, if there are any."""
    graphs = {rank.rank: rank.replayed.inside for rank in ranks if rank.replayed is not None and rank.on_gpu}
    orphans: dict[bool, list[float]] = {True: [], False: []}
    for launch in launches:
        if launch.op_id < 0:
            orphans[launch.rank in graphs and bool(graphs[launch.rank][launch.row])].append(launch.dur_us)
    total_us = sum(launch.dur_us for launch in launches) or 1.0
    all_launches = plural(len(launches), "launch")
    reasons = {
        True: "graphs replayed them: give their capture, or an eager trace of the same model, with --capture",
        False: "their ops began outside the recording, or were not recorded",
    }
    return [
        f"{len(us)} of {all_launches} ({100 * sum(us) / total_us:.1f} % of the time) have no op: {reason}"
        for of_graph, reason in reasons.items()
        if (us := orphans[of_graph])
    ]


@dataclass
class Catalogue:
    """All launches, ordered by rank, then time; `sig_id` joins them with `signatures`.

    Column `bound` of `unique` is `at least` where rows are known to be missing.
    """

    ranks: list[RankData]
    launches: list[Launch]
    modules: list[str]  # (launches,) the path of the module around each, "" where it is not known
    books: list[OpBook]
    signatures: Signatures
    unique: pd.DataFrame
    problems: list[str]

    @cached_property
    def ops(self) -> list[OpRecord]:
        """The ops that own launches, and those around them, by rank and row."""
        return [record for book in self.books for record in book.records()]

    @property
    def op_names(self) -> list[str]:
        """The op (launches,) that owns each launch, "" for none."""
        ops = {signature.sig_id: signature.op for signature in self.signatures.signatures}
        return [ops[launch.sig_id] for launch in self.launches]

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
    return put_together(read_ranks(trails, captures, inductor))


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
    mark_waits(ranks, launches)
    modules = modules_of(books, launches)
    signatures = signatures_of(ranks, books, launches, modules)
    problems = [text for rank in ranks for text in rank.problems]
    problems += [*stand_ins(ranks), *uneven_ranks(signatures), *launches_without_op(launches, ranks)]
    catalogue = Catalogue(
        ranks, launches, modules, books, signatures, unique_table(signatures, launches), problems
    )
    signatures.bound = bound(catalogue.lacks)
    catalogue.unique = catalogue.unique.assign(**catalogue.marks)
    return catalogue


def mark_waits(ranks: Sequence[RankData], launches: Sequence[Launch]) -> None:
    """Set `wait_us` of collectives: the time before the last rank has come is not a cost of their own."""
    works = {rank.rank: work_of(rank.trace, rank.rank) for rank in ranks if rank.on_gpu}
    if len(works) < 2:
        return
    all_ranks = together(works)
    by_row: dict[tuple[int, int], float] = {}
    for work, call in zip(all_ranks.works, all_ranks.calls, strict=True):
        wait_us = (call.all_in - work.start[call.row]) / 1000
        for index in np.flatnonzero((wait_us > 0) & (call.last_index != UNKNOWN)).tolist():
            by_row[work.rank, int(call.row[index])] = float(wait_us[index])
    for launch in launches:
        launch.wait_us = by_row.get((launch.rank, launch.row), 0.0)
