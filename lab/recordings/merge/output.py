"""What both merges share: the compressed file, the numbering of processes, lanes, the result."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import msgspec

from lab.core.files import replacing

packer: ModuleType

try:
    from isal import igzip as packer
except ModuleNotFoundError:  # a few times slower, the same format
    packer = gzip

RANK_PIDS = 1000
CPU_PIDS = 500

FIRST_TEXT_TID = 1 << 30  # above any thread number of Linux

ENCODER = msgspec.json.Encoder(decimal_format="number")


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


def lanes(starts: Sequence[Any], ends: Sequence[Any]) -> list[int]:
    """The lane of each slice of one row, given by start and longest first: slices of one lane only nest.

    Viewers cut or drop what begins within a slice and ends after it, so that goes to the first lane where the
    last open slice has ended or contains it.
    """
    slice_lanes = []
    open_ends: list[list[Any]] = []  # by lane, outermost first
    for start, end in zip(starts, ends, strict=True):
        for lane, lane_ends in enumerate(open_ends):
            while lane_ends and lane_ends[-1] <= start:
                lane_ends.pop()
            if not lane_ends or lane_ends[-1] >= end:
                lane_ends.append(end)
                slice_lanes.append(lane)
                break
        else:
            slice_lanes.append(len(open_ends))
            open_ends.append([end])
    return slice_lanes
