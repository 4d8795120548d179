"""Which GPU rows each graph launch made, and what the two sides of a match are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.recordings.capture import MEMCPY, MEMSET, Capture, Strings
from lab.recordings.names import kernel_class

# ROCm fills and copies with kernels, CUDA with rows of their own: on both sides one word.
COPY, FILL = "[copy]", "[fill]"


class Words(Strings):
    """Numbers of texts, shared by all recordings of one join; "" is -1."""

    def __init__(self) -> None:
        super().__init__()
        self[""] = -1

    def of(self, texts: Sequence[str], ids: np.ndarray) -> np.ndarray:
        """Words (n,) of string ids (n,): of a kernel's name."""
        used, index_of_id = np.unique(ids, return_inverse=True)
        numbers = np.array(
            [self[plain(texts[index]) if index >= 0 else ""] for index in used], dtype=np.int64
        )
        return numbers[index_of_id.ravel()] if len(used) else np.empty(0, dtype=np.int64)


def plain(name: str) -> str:
    """A kernel's name; all copies are one word, and so are all fills."""
    kind = kernel_class(name)
    return COPY if kind == "memcpy" else FILL if kind == "memset" else name


def words_of_rows(capture: Capture, words: Words) -> np.ndarray:
    """The word (n,) of each GPU operation."""
    named = words.of(capture.strings, capture.ops.name_id)
    named_copies = np.where(capture.ops.kind == MEMCPY, words[COPY], named)
    return np.where(capture.ops.kind == MEMSET, words[FILL], named_copies)


@dataclass(frozen=True)
class Replays:
    """Graph launches in order of their first row: rows of replay r are rows[bounds[r]:bounds[r + 1]].

    rows (k,) of `ops`, by stream, then start; call (r,) of `api`, or -1.
    """

    rows: np.ndarray
    bounds: np.ndarray
    call: np.ndarray

    def __len__(self) -> int:
        return len(self.call)

    def of(self, index: int) -> np.ndarray:
        return self.rows[self.bounds[index] : self.bounds[index + 1]]


def replays_of(capture: Capture, call: np.ndarray, inside: np.ndarray) -> Replays:
    """The replays of a recording; a replay is one (process, correlation)."""
    rows = np.flatnonzero(inside)
    ops = capture.ops.take(rows)
    keys = np.stack([ops.process.astype(np.int64), ops.corr], axis=1)
    _, replay = np.unique(keys, axis=0, return_inverse=True)
    replay = replay.ravel()
    began = np.full(replay.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(began, replay, ops.start_ns)
    rank = np.empty(len(began), dtype=np.int64)
    rank[np.argsort(began, kind="stable")] = np.arange(len(began))
    replay = rank[replay]
    order = np.lexsort((ops.end_ns, ops.start_ns, ops.stream, replay))
    bounds = np.searchsorted(replay[order], np.arange(len(began) + 1))
    rows = rows[order]
    return Replays(rows, bounds, call[rows[bounds[:-1]]] if len(began) else np.empty(0, dtype=np.int64))
