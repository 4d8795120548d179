"""A segmentation as a decoder returns it: a read-only sequence of (start, end exclusive, label) over arrays.

Paths and tuples are made when somebody looks at them: where segments are short they cost more than the
decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import numpy as np

from lab.rooms.semicrf.model.naive import Segment

One = TypeVar("One", covariant=True)


class Listed(Sequence[One]):
    """Equal to the list of what it holds, and its text and sums are that list's; without a hash, as every
    class that defines __eq__ alone. A class of these says what is at a place.
    """

    __slots__ = ()

    def at(self, place: int) -> One:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> One: ...
    @overload
    def __getitem__(self, index: slice) -> list[One]: ...
    def __getitem__(self, index: int | slice) -> One | list[One]:
        if isinstance(index, slice):
            return list(self)[index]
        return self.at(range(len(self))[index])  # raises IndexError as a list does

    def __add__(self, other: Sequence[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        return [*other, *self]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | Listed) else NotImplemented

    def __repr__(self) -> str:
        return repr(list(self))


class Path(Listed[Segment]):
    """Segments that tile a sequence, in order, from label + 1 where one ends with a frame, else 0: looked for
    when somebody asks.

    `end_n` and `label_n` (n,) int32 are the segments' ends (exclusive) and labels: a segment starts where the
    one before it ends. `array` is all three columns.
    """

    __slots__ = ("columns", "ends_T")

    def __init__(self, ends_T: np.ndarray) -> None:
        self.ends_T = ends_T
        self.columns: tuple[np.ndarray, np.ndarray] | None = None

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        if self.columns is None:
            (last_n,) = self.ends_T.nonzero()
            self.columns = (last_n + 1).astype(np.int32), self.ends_T[last_n].astype(np.int32) - 1
        return self.columns

    @property
    def end_n(self) -> np.ndarray:
        return self.found()[0]

    @property
    def label_n(self) -> np.ndarray:
        return self.found()[1]

    @property
    def array(self) -> np.ndarray:
        """(n, 3) int64: start, end (exclusive), label."""
        start_n = np.concatenate([[0], self.end_n[:-1]]) if len(self) else self.end_n
        return np.stack([start_n, self.end_n, self.label_n], axis=1).astype(np.int64)

    def tolist(self) -> list[Segment]:
        ends = self.end_n.tolist()
        return list(zip([0, *ends], ends, self.label_n.tolist(), strict=False))

    def __len__(self) -> int:
        return len(self.end_n)

    def at(self, place: int) -> Segment:
        return int(self.end_n[place - 1]) if place else 0, int(self.end_n[place]), int(self.label_n[place])

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.tolist())

    def __reduce__(self) -> tuple[type[Path], tuple[np.ndarray]]:
        return Path, (self.ends_T.copy(),)


class PathList(Listed[Path]):
    """The segmentations of a sequence, made when somebody looks at them."""

    __slots__ = ("ends_NT",)

    def __init__(self, ends_NT: np.ndarray) -> None:
        self.ends_NT = ends_NT

    def __len__(self) -> int:
        return len(self.ends_NT)

    def at(self, place: int) -> Path:
        return Path(self.ends_NT[place])

    def __iter__(self) -> Iterator[Path]:
        return map(Path, self.ends_NT)


class BatchPaths(Listed[PathList]):
    """The segmentations of each sequence."""

    __slots__ = ("ends_BNT",)

    def __init__(self, ends_BNT: np.ndarray) -> None:
        self.ends_BNT = ends_BNT

    def __len__(self) -> int:
        return len(self.ends_BNT)

    def at(self, place: int) -> PathList:
        return PathList(self.ends_BNT[place])

    def __iter__(self) -> Iterator[PathList]:
        return map(PathList, self.ends_BNT)


class ScoredPaths(Listed[tuple[float, Path]]):
    """The best segmentations of a sequence with their scores, made when somebody looks at them."""

    __slots__ = ("paths", "scores")

    def __init__(self, paths: PathList, scores: list[float]) -> None:
        self.paths, self.scores = paths, scores

    def __len__(self) -> int:
        return len(self.scores)

    def at(self, place: int) -> tuple[float, Path]:
        return self.scores[place], self.paths.at(place)

    def __iter__(self) -> Iterator[tuple[float, Path]]:
        return zip(self.scores, self.paths, strict=False)  # fewer scores than paths where fewer are there


@dataclass(frozen=True)
class Decoded:
    """Segmentations on the CPU: label + 1 where a segment ends with a frame, else 0."""

    ends_BNT: np.ndarray
    ordinary: bool = True
    """Whether the form saw no number that is NaN, +inf or large, or did not look."""

    def paths(self) -> BatchPaths:
        return BatchPaths(self.ends_BNT)
