"""build"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lab.errors import BadDataError
from lab.rooms.kernels.catalogue.doubts import owners_missing, uneven
from lab.rooms.kernels.catalogue.launches import launches_of
from lab.rooms.kernels.catalogue.ops import OpBook
from lab.rooms.kernels.catalogue.rank import RankData, read_rank
from lab.rooms.kernels.catalogue.signatures import signatures_of
from lab.rooms.kernels.catalogue.unique import unique_table
from lab.rooms.kernels.schema import (
    Launch,
    OpRecord,
    Signatures,
)
from lab.rooms.kernels.trails import Trail


@dataclass
class Catalogue:
    """Everything the traces tell. `launches` are ordered by rank, then time; sig_id joins them with `signatures`."""

    ranks: list[RankData]
    launches: list[Launch]
    ops: list[OpRecord]
    signatures: Signatures
    unique: pd.DataFrame
    problems: list[str]


def read_catalogue(
    found: Sequence[Trail], *, cache: Path | None = None, progress: Callable[[str], None] = lambda _: None
) -> Catalogue:
    """Read the traces of all ranks and put the catalogue together. Raises what the reader raises for a broken one."""
    ranks = []
    for trail in found:
        progress(f"  reading {trail.trace.name}")
        ranks.append(read_rank(trail, cache=cache))
    if not any(len(rank.rows) for rank in ranks):
        raise BadDataError(
            "the trace holds neither kernels nor ops",
            where=found[0].trace,
            fix="record with activities CPU and CUDA, and run the model inside the profiler",
        )
    return put_together(ranks)


def put_together(ranks: list[RankData]) -> Catalogue:
    """One catalogue of all ranks, on a common zero of time."""
    starts = [rank.start_ns() for rank in ranks]
    zero_ns = min((int(one.min()) for one in starts if len(one)), default=0)
    launches: list[Launch] = []
    keys: list[tuple[Any, ...]] = []
    ops: list[OpRecord] = []
    for rank in ranks:
        book = OpBook(rank, zero_ns)
        found = launches_of(rank, book, zero_ns)
        launches += [launch for launch, _ in found]
        keys += [key for _, key in found]
        ops += book.records()
    signatures = signatures_of(ranks, launches, keys)
    problems = (
        [text for rank in ranks for text in rank.problems]
        + uneven(signatures)
        + owners_missing(launches, ranks)
    )
    return Catalogue(ranks, launches, ops, signatures, unique_table(signatures, launches), problems)
