"""The files of a merge: which can be read, and which rank each one is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.recordings.merge.chrome.events import read_frame
from lab.recordings.merge.output import Ranks


@dataclass(frozen=True)
class Recording:
    """One rank's file as its frame describes it; base_ns is 0 where times are absolute."""

    path: Path
    rank: int
    base_ns: int
    frame: dict[str, Any]


def recordings(
    traces: Sequence[tuple[int | None, Path]], *, salvage: bool
) -> tuple[list[Recording], list[str]]:
    """The readable traces by rank, a sentence for each other one."""
    ranks = Ranks(
        traces,
        lambda path: read_frame(path, salvage=salvage),
        lambda frame: natural_number(distributed_info(frame).get("rank")),
    )
    readable = [
        Recording(path, rank, natural_number(frame.get("baseTimeNanoseconds")) or 0, frame)
        for rank, path, frame in ranks
    ]
    return sorted(readable, key=lambda recording: recording.rank), ranks.problems


def absent(present: Sequence[Recording]) -> tuple[int, ...]:
    """Ranks below the world's size that have no recording."""
    size = max(
        (natural_number(distributed_info(one.frame).get("world_size")) or 0 for one in present), default=0
    )
    have = {one.rank for one in present}
    return tuple(rank for rank in range(min(size, 1 << 16)) if rank not in have)


def distributed_info(frame: Mapping[str, Any]) -> dict[str, Any]:
    info = frame.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def natural_number(value: Any) -> int | None:
    """The value if it is a plausible number, otherwise None."""
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
    return value if fits else None
