"""What both formats share: the compressed file, the numbering of processes, the result."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO

from lab.core.files import replacing

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


@contextmanager
def packed(target: Path) -> Iterator[IO[bytes]]:
    """A gzip file that appears once it is complete; no name or time in it: equal input, equal bytes."""
    with (
        replacing(target) as file,
        packer.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=2, mtime=0) as gz,
    ):
        yield gz
