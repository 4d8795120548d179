"""Utterances, corpora and padded batches. numpy only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lab.errors import BadDataError

Segment = tuple[int, int, int]


MENDED = {
    "past": "frames past the last segment, which it got (centred framing)",
    "overlap": "a frame in two segments, which the earlier one keeps",
    "silence": "sound after the last phone, which is silence now",
}
MOST_PAST = 2
"""Frames past the last segment that windows around the last samples can make."""


class Note(NamedTuple):
    """What a corpus' reader has to say of it; `suspect`: its figures may not be what they seem."""

    suspect: bool
    text: str


@dataclass(frozen=True)
class Utterance:
    """`features` (T, D) float32; `segments` tile 0..T as (start, end_exclusive, label)."""

    name: str
    speaker: str
    features: np.ndarray
    segments: tuple[Segment, ...]
    mended: tuple[str, ...] = ()
    """What its reader put right: keys of `MENDED`."""

    @property
    def labels(self) -> np.ndarray:
        """(T,) int64, one label per frame."""
        return np.repeat([s[2] for s in self.segments], [s[1] - s[0] for s in self.segments]).astype(np.int64)


@dataclass(frozen=True)
class Corpus:
    """Three splits with no speaker in two of them; `phones` names the labels."""

    train: list[Utterance]
    dev: list[Utterance]
    test: list[Utterance]
    phones: tuple[str, ...]
    origin: str
    notes: tuple[Note, ...] = ()

    @property
    def dim(self) -> int:
        return int(self.train[0].features.shape[1])

    def with_splits(self, change: Callable[[list[Utterance]], list[Utterance]]) -> Corpus:
        return replace(self, train=change(self.train), dev=change(self.dev), test=change(self.test))


def cropped(corpus: Corpus, length: int) -> Corpus:
    """Every utterance cut to its first `length` frames, shorter ones left out; nothing is padded."""

    def cut(utterances: list[Utterance]) -> list[Utterance]:
        long = [u for u in utterances if len(u.features) >= length]
        tiles = [tuple((s, min(e, length), c) for s, e, c in u.segments if s < length) for u in long]
        pairs = zip(long, tiles, strict=True)
        return [replace(u, features=u.features[:length], segments=segments) for u, segments in pairs]

    return corpus.with_splits(cut)


def tiled(segments: Sequence[Segment], frames: int) -> tuple[tuple[Segment, ...], tuple[str, ...]]:
    """Segments that tile the frames, and what was mended for it. Raises ValueError where they cannot.

    The published preprocessing centres its windows, so that a frame lies past the last segment, and gives a
    phone shorter than a hop a frame that its neighbour has, too.
    """
    tiles: list[Segment] = []
    mended: list[str] = []
    cursor = 0
    for start, end, label in segments:
        if end <= start or label < 0:
            raise ValueError("a segment is empty or its label is negative")
        if start == cursor - 1 and tiles:
            mended.append("overlap")
            start = cursor
        if start != cursor:
            raise ValueError(f"the segments do not tile the frames: one starts at {start}, not at {cursor}")
        if end > start:
            tiles.append((start, end, label))
            cursor = end
    if tiles and 0 < frames - cursor <= MOST_PAST:
        mended.append("past")
        tiles[-1] = (tiles[-1][0], frames, tiles[-1][2])
    elif cursor != frames:
        raise ValueError(f"the segments do not tile the frames: they cover {cursor} of {frames}")
    return tuple(tiles), tuple(dict.fromkeys(mended))


def normalised(corpus: Corpus) -> Corpus:
    """z-scores by the training set's mean and deviation (at least 1e-8). Raises BadDataError."""
    frames = np.concatenate([u.features for u in corpus.train])
    with np.errstate(over="ignore", invalid="ignore"):  # named below
        mean, deviation = frames.mean(axis=0), np.maximum(frames.std(axis=0), 1e-8)
    if not np.isfinite(deviation).all():
        d = int(np.isfinite(deviation).argmin())
        text = f"feature {d} is too large: the training set's deviation is {deviation[d]} in float32"
        raise BadDataError(text, location=corpus.origin, fix="scale the features to a moderate size")
    if bool((frames == frames[0]).all()):
        text = f"every feature of the training set is constant: all frames are {frames[0, 0]:g}"
        text = text if len(set(frames[0].tolist())) == 1 else "all frames of the training set are the same"
        raise BadDataError(text, location=corpus.origin, fix="look at how the features were made")

    def scaled(utterances: list[Utterance]) -> list[Utterance]:
        return [replace(u, features=((u.features - mean) / deviation).astype(np.float32)) for u in utterances]

    return corpus.with_splits(scaled)


def batches(utterances: Sequence[Utterance], size: int, order: np.ndarray) -> Iterator[list[Utterance]]:
    for begin in range(0, len(order), size):
        yield [utterances[index] for index in order[begin : begin + size]]


def collate(utterances: Sequence[Utterance]) -> dict[str, np.ndarray]:
    """features (B, T, D), labels (B, T) and starts (B, T) bool padded with 0, lengths (B,).

    `starts` marks the first frame of each segment: two neighbours of one label stay two segments.
    """
    lengths = np.array([len(u.features) for u in utterances], dtype=np.int64)
    size, longest = len(utterances), int(lengths.max())
    features = np.zeros((size, longest, utterances[0].features.shape[1]), dtype=np.float32)
    labels = np.zeros((size, longest), dtype=np.int64)
    starts = np.zeros((size, longest), dtype=bool)
    for row, utterance in enumerate(utterances):
        features[row, : lengths[row]] = utterance.features
        labels[row, : lengths[row]] = utterance.labels
        starts[row, [s[0] for s in utterance.segments]] = True
    return {"features": features, "labels": labels, "starts": starts, "lengths": lengths}
