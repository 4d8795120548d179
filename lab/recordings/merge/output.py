"""What both formats share: the compressed file, the numbering of processes, the result."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import IO, Generic, TypeVar

from lab.core.files import replacing
from lab.errors import LabError

Loaded = TypeVar("Loaded")

packer: ModuleType

try:
    from isal import igzip as packer
except ModuleNotFoundError:  # a few times slower, the same format
    packer = gzip

RANK_PIDS = 1000
CPU_PIDS = 500

FIRST_TEXT_TID = 1 << 30  # above any thread number of Linux


@dataclass(frozen=True)
class Merged:
    """The result of a merge; path is None where nothing could be merged.

    written and dropped count events, offsets_ns says by how much each rank's times were moved, `missing`
    lists ranks without a readable trace, problems are sentences.
    """

    path: Path | None
    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    written: int
    dropped: dict[str, int]
    offsets_ns: dict[int, int]
    problems: tuple[str, ...]


@dataclass
class Ranks(Generic[Loaded]):
    """The readable ones of `traces`, each rank once; a sentence in `problems` for each other one.

    The rank that the trace says takes precedence over that of its path.
    """

    traces: Sequence[tuple[int | None, Path]]
    load: Callable[[Path], Loaded]
    rank_of: Callable[[Loaded], int | None]
    problems: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[int, Path, Loaded]]:
        used: set[int] = set()
        for rank_in_path, path in self.traces:
            try:
                loaded = self.load(path)
            except LabError as error:
                self.problems.append(f"left out: {error.problem} ({error.location})")
                continue
            recorded = self.rank_of(loaded)
            rank = rank_in_path if recorded is None else recorded
            if rank is None:
                rank = max(used, default=-1) + 1
                self.problems.append(f"rank unknown, shown as rank {rank} ({path})")
            if rank in used:
                self.problems.append(f"left out: another trace is of rank {rank}, too ({path})")
                continue
            used.add(rank)
            yield rank, path, loaded


@contextmanager
def packed(target: Path) -> Iterator[IO[bytes]]:
    """A file that appears once it is complete, gzip where its name ends so; equal input, equal bytes."""
    if target.suffix != ".gz":
        with replacing(target) as file:
            yield file
        return
    with (
        replacing(target) as file,
        packer.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=2, mtime=0) as gz,
    ):
        yield gz
