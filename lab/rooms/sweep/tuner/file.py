"""The rows of a tuner's file: written only after they were checked, for NCCL's example does not check.

A row is `collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks`, without blanks; bounds
are inclusive and the first match wins. An unknown word silently becomes allreduce, ring or simple there, and
a line of 256 characters or more is read as two. Sources: NVIDIA/nccl `ext-tuner/example`, ROCm/rocm-systems
`projects/rccl` (its tuner reads the same columns).
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.errors import BadDataError, MissingError
from lab.rooms.sweep.knobs import ALGORITHMS, PROTOCOLS

COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
HEADER = "collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"
LARGEST = (1 << 64) - 1
# 4294967295 is not a maximum there: sizes are 64 bits wide.
OPEN_ABOVE = 1 << 32
LONGEST_LINE, MOST_BYTES = 255, 1 << 20
_WIDTH = 110


@dataclass(frozen=True)
class Row:
    """One rule; -1 in channels, nodes or ranks means any, or keep."""

    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    channels: int
    nodes: int
    ranks: int

    def text(self) -> str:
        return ",".join(str(value) for value in vars(self).values())

    def matches(self, collective: str, num_bytes: int, ranks: int) -> bool:
        return (
            self.collective == collective
            and self.min_bytes <= num_bytes <= self.max_bytes
            and self.ranks in (-1, ranks)
        )


def problem_of(row: Row) -> str | None:
    """What is wrong with a row, None for nothing."""
    numbers = (row.channels, row.nodes, row.ranks)
    if row.collective not in COLLECTIVES:
        return f"the collective {row.collective!r} is none of {', '.join(COLLECTIVES)}"
    if row.algorithm not in ALGORITHMS or row.protocol not in PROTOCOLS:
        return f"{row.algorithm!r} with {row.protocol!r} is not a known algorithm and protocol"
    if not 0 <= row.min_bytes <= row.max_bytes <= LARGEST:
        return f"the sizes {row.min_bytes} to {row.max_bytes} are not a range"
    if any(number < -1 or number == 0 for number in numbers):
        return "channels, nodes and ranks must be above 0, or -1"
    return None


def bounds_of(sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
    """The range of each measured size: to the geometric means with its neighbours, half and twice outside."""
    ordered = sorted(set(sizes))
    if not ordered:
        return {}
    edges = [ordered[0] // 2]
    edges += [math.isqrt(low * high) for low, high in itertools.pairwise(ordered)]
    top = 2 * ordered[-1]
    edges.append(LARGEST if top >= OPEN_ABOVE else top)
    firsts = [edges[0], *(edge + 1 for edge in edges[1:-1])]
    return {size: (first, last) for size, first, last in zip(ordered, firsts, edges[1:], strict=True)}


def text_of(rows: Sequence[Row], comments: Sequence[str], notes: Sequence[str]) -> str:
    """The file: comments, rows, and notes on what is left at default. Raises BadDataError for a bad row."""
    for row in rows:
        wrong = problem_of(row)
        if wrong:
            raise BadDataError(f"{wrong}: {row.text()}", fix="this row is not written")
    lines = [*_commented(comments), f"# {HEADER}", *(row.text() for row in rows), *_commented(notes)]
    return "".join(f"{line}\n" for line in lines)


def _commented(texts: Iterable[str]) -> list[str]:
    return [
        f"# {line}" for text in texts for line in textwrap.wrap(text, _WIDTH, break_long_words=True) or [""]
    ]


def read_rows(path: Path) -> list[Row]:
    """The rows of a tuner's file. Raises MissingError without one, BadDataError with line for a bad row."""
    if not path.is_file():
        raise MissingError("no such tuner file", location=path, fix="write one with `lab ranks tuner SWEEP`")
    if path.stat().st_size > MOST_BYTES:
        raise BadDataError(f"larger than {MOST_BYTES >> 20} MiB: no tuner file", location=path)
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        place = f"{path}:{number}"
        if len(line) > LONGEST_LINE:
            raise BadDataError(f"a line of {len(line)} characters, which NCCL reads as two", location=place)
        row = _row(line, place)
        wrong = problem_of(row)
        if wrong:
            raise BadDataError(wrong, location=place, fix="a tuner may take this row for another collective")
        rows.append(row)
    return rows


def _row(line: str, place: str) -> Row:
    parts = [part.strip() for part in line.split(",")]
    numbers = [parts[column] for column in (1, 2, 5, 6, 7)] if 8 <= len(parts) <= 10 else []
    if not numbers or not all(part.lstrip("-").isdecimal() and len(part) <= 20 for part in numbers):
        raise BadDataError("a row must be " + HEADER, location=place)
    low, high, channels, nodes, ranks = (int(part) for part in numbers)
    return Row(parts[0], low, high, parts[3], parts[4], channels, nodes, ranks)
