"""A segmentation as a decoder returns it: a read-only sequence of (start, end exclusive, label) over arrays.

Paths and tuples are made when somebody looks at them: where segments are short they cost more than the
decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from lab.rooms.semicrf.model.naive import Segment

One = TypeVar("One", covariant=True)


class Listed(Sequence[One]):
    """Its text and sums are a list's; without a hash, as every class that defines __eq__ alone."""

    __slots__ = ()

    def __add__(self, other: Sequence[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(list(self))


class Path(Listed[Segment]):
    """Segments that tile a sequence, in order; equal to the list of the same tuples.

    `end_n` and `label_n` (n,) int32 are the segments' ends (exclusive) and labels: a segment starts where the
    one before it ends. `array` is all three columns.
    """

    __slots__ = ("end_n", "label_n")

    def __init__(self, end_n: np.ndarray, label_n: np.ndarray) -> None:
        self.end_n, self.label_n = end_n, label_n

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

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        if isinstance(index, slice):
            return self.tolist()[index]
        at = range(len(self))[index]  # raises IndexError as a list does
        return int(self.end_n[at - 1]) if at else 0, int(self.end_n[at]), int(self.label_n[at])

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Path):
            return np.array_equal(self.end_n, other.end_n) and np.array_equal(self.label_n, other.label_n)
        return self.tolist() == other if isinstance(other, list) else NotImplemented


class RowPath(Path):
    """The same from rows (end, label), one for each segment, from the last one on, of which `size` are there:
    they are turned round when somebody looks.
    """

    __slots__ = ("row_T2", "size")

    def __init__(self, row_T2: np.ndarray, size: int) -> None:
        self.row_T2, self.size = row_T2, size

    @property
    def end_n(self) -> np.ndarray:  # type: ignore[override]
        return self.row_T2[: self.size, 0][::-1]

    @property
    def label_n(self) -> np.ndarray:  # type: ignore[override]
        return self.row_T2[: self.size, 1][::-1]

    def __len__(self) -> int:
        return self.size

    def __reduce__(self) -> tuple[type[Path], tuple[np.ndarray, np.ndarray]]:
        return Path, (self.end_n.copy(), self.label_n.copy())


class PathList(Listed[Path]):
    """The segmentations of a sequence, made when somebody looks at them; equal to the list of them."""

    __slots__ = ("rows_NT2", "sizes")

    def __init__(self, rows_NT2: np.ndarray, sizes: list[int]) -> None:
        self.rows_NT2, self.sizes = rows_NT2, sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> list[Path]: ...
    def __getitem__(self, index: int | slice) -> Path | list[Path]:
        if isinstance(index, slice):
            return list(self)[index]
        at = range(len(self))[index]  # raises IndexError as a list does
        return RowPath(self.rows_NT2[at], self.sizes[at])

    def __iter__(self) -> Iterator[Path]:
        return map(RowPath, self.rows_NT2, self.sizes)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | PathList) else NotImplemented


class ScoredPaths(Listed[tuple[float, Path]]):
    """The best segmentations of a sequence with their scores, made when somebody looks at them; equal to the
    list of the pairs.
    """

    __slots__ = ("paths", "scores")

    def __init__(self, paths: PathList, scores: list[float]) -> None:
        self.paths, self.scores = paths, scores

    def __len__(self) -> int:
        return len(self.scores)

    @overload
    def __getitem__(self, index: int) -> tuple[float, Path]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[float, Path]]: ...
    def __getitem__(self, index: int | slice) -> tuple[float, Path] | list[tuple[float, Path]]:
        if isinstance(index, slice):
            return list(self)[index]
        at = range(len(self))[index]
        return self.scores[at], self.paths[at]

    def __iter__(self) -> Iterator[tuple[float, Path]]:
        return zip(self.scores, self.paths, strict=False)  # fewer scores than paths where fewer are there

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | ScoredPaths) else NotImplemented
