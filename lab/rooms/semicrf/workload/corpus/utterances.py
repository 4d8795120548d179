"""Utterances, corpora and padded batches. numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lab.errors import BadDataError

Segment = tuple[int, int, int]


@dataclass(frozen=True)
class Utterance:
    """`features` (T, D) float32; `segments` tile 0..T as (start, end_exclusive, label)."""

    name: str
    speaker: str
    features: np.ndarray
    segments: tuple[Segment, ...]

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

    @property
    def dim(self) -> int:
        return int(self.train[0].features.shape[1])


def cropped(corpus: Corpus, length: int) -> Corpus:
    """Every utterance cut to its first `length` frames, shorter ones left out; nothing is padded."""

    def cut(utterances: list[Utterance]) -> list[Utterance]:
        return [
            Utterance(
                u.name,
                u.speaker,
                u.features[:length],
                tuple((s, min(e, length), c) for s, e, c in u.segments if s < length),
            )
            for u in utterances
            if len(u.features) >= length
        ]

    return Corpus(cut(corpus.train), cut(corpus.dev), cut(corpus.test), corpus.phones, corpus.origin)


def normalised(corpus: Corpus) -> Corpus:
    """z-scores by the training set's mean and deviation (at least 1e-8). Raises BadDataError."""
    frames = np.concatenate([u.features for u in corpus.train])
    with np.errstate(over="ignore", invalid="ignore"):  # named below
        mean, deviation = frames.mean(axis=0), np.maximum(frames.std(axis=0), 1e-8)
    if not np.isfinite(deviation).all():
        d = int(np.isfinite(deviation).argmin())
        text = f"feature {d} is too large: the training set's deviation is {deviation[d]} in float32"
        raise BadDataError(text, location=corpus.origin, fix="scale the features to a moderate size")

    def scaled(utterances: list[Utterance]) -> list[Utterance]:
        return [
            Utterance(u.name, u.speaker, ((u.features - mean) / deviation).astype(np.float32), u.segments)
            for u in utterances
        ]

    return Corpus(scaled(corpus.train), scaled(corpus.dev), scaled(corpus.test), corpus.phones, corpus.origin)


def batches(utterances: Sequence[Utterance], size: int, order: np.ndarray) -> Iterator[list[Utterance]]:
    for at in range(0, len(order), size):
        yield [utterances[index] for index in order[at : at + size]]


def collate(utterances: Sequence[Utterance]) -> dict[str, np.ndarray]:
    """features (B, T, D), labels (B, T) and starts (B, T) bool padded with 0, lengths (B,).

    `starts` marks the first frame of each segment: two neighbours of one label stay two segments.
    """
    lengths = np.array([len(u.features) for u in utterances], dtype=np.int64)
    size, longest = len(utterances), int(lengths.max())
    features = np.zeros((size, longest, utterances[0].features.shape[1]), dtype=np.float32)
    labels = np.zeros((size, longest), dtype=np.int64)
    starts = np.zeros((size, longest), dtype=bool)
    for at, utterance in enumerate(utterances):
        features[at, : lengths[at]] = utterance.features
        labels[at, : lengths[at]] = utterance.labels
        starts[at, [s[0] for s in utterance.segments]] = True
    return {"features": features, "labels": labels, "starts": starts, "lengths": lengths}
