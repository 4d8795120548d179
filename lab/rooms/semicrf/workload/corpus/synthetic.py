"""A corpus made by known parameters: it exercises every path and is not speech.

For each utterance it draws phones by a bigram without repeats, durations by a shifted negative binomial per
phone, and features by an AR(1) process around the phone's mean with coarticulation at the boundaries.

With `durations="narrow"` phones come in threes of one mean that last 3, 8 or 13 frames, give or take one:
within a three only the duration tells them apart, and no two of a three are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.errors import UsageError
from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.workload.corpus.phones import PHONES_39
from lab.rooms.semicrf.workload.corpus.utterances import Corpus, Utterance, normalised

FEATURES = 39
NARROW = (3, 8, 13)
LONGEST_NARROW = NARROW[-1] + 1


def synthetic(config: TrainConfig) -> Corpus:
    """The generator's corpus; the same config gives the same bits."""
    dice = np.random.default_rng(config.seed)
    truth = Truth.draw(dice, config.phones)
    if config.durations == "narrow":
        truth = truth.narrowed()
    sizes = {
        "train": config.utterances,
        "dev": max(2, config.utterances // 4),
        "test": max(2, config.utterances // 4),
    }
    train, dev, test = (
        [truth.utterance(dice, f"{split}_{number:05d}", config.mean_segments) for number in range(count)]
        for split, count in sizes.items()
    )
    return normalised(Corpus(train, dev, test, PHONES_39[: config.phones], "synthetic"))


@dataclass(frozen=True)
class Truth:
    """The generator's parameters: what a model could at best learn."""

    means: np.ndarray  # (C, D) features of each phone
    bigram: np.ndarray  # (C, C) rows sum to 1, the diagonal is 0
    duration_mean: np.ndarray  # (C,) frames
    noise: float
    narrow: bool = False

    @classmethod
    def draw(cls, dice: np.random.Generator, classes: int) -> Truth:
        bigram = dice.dirichlet(np.full(classes, 0.6), size=classes) + 1e-3
        np.fill_diagonal(bigram, 0.0)
        return cls(
            means=dice.normal(0.0, 1.0, (classes, FEATURES)) * 0.55,
            bigram=bigram / bigram.sum(axis=1, keepdims=True),
            duration_mean=dice.uniform(2.5, 9.0, classes),
            noise=1.0,
        )

    def narrowed(self) -> Truth:
        """Phones in threes that share a mean and differ in duration. Raises UsageError for a single three."""
        three = np.arange(len(self.means)) // len(NARROW)
        if three[-1] == 0:
            raise UsageError("narrow durations need at least 4 phones", fix="a larger --phones")
        bigram = np.where(three[:, None] == three, 0.0, self.bigram)
        return Truth(
            self.means[three * len(NARROW)],
            bigram / bigram.sum(axis=1, keepdims=True),
            np.resize(np.array(NARROW, dtype=float), len(three)),
            self.noise,
            narrow=True,
        )

    def utterance(self, dice: np.random.Generator, name: str, mean_segments: int) -> Utterance:
        count = max(2, int(dice.poisson(mean_segments)))
        phones = [int(dice.integers(len(self.means)))]
        while len(phones) < count:
            phones.append(int(dice.choice(len(self.means), p=self.bigram[phones[-1]])))
        durations = self.durations(dice, phones)
        ends = np.cumsum(durations).tolist()
        segments = tuple(zip([0, *ends[:-1]], ends, phones, strict=True))
        return Utterance(
            name, f"S{dice.integers(10**6):06d}", self.features(dice, phones, durations), segments
        )

    def durations(self, dice: np.random.Generator, phones: Sequence[int]) -> np.ndarray:
        """Frames of each segment: narrow around the mean, or with a tail as durations of speech have."""
        mean = self.duration_mean[phones]
        if self.narrow:
            return mean.astype(int) + dice.integers(-1, 2, len(phones))
        return 1 + dice.negative_binomial(4, 4 / (4 + (mean - 1)))  # of shape 4

    def features(self, dice: np.random.Generator, phones: Sequence[int], durations: np.ndarray) -> np.ndarray:
        clean = np.repeat(self.means[list(phones)], durations, axis=0)
        blurred = 0.25 * np.roll(clean, 1, axis=0) + 0.5 * clean + 0.25 * np.roll(clean, -1, axis=0)
        blurred[[0, -1]] = clean[[0, -1]]
        noise = dice.normal(0.0, self.noise, clean.shape)
        for frame in range(1, len(noise)):
            noise[frame] = 0.6 * noise[frame - 1] + 0.8 * noise[frame]
        return (blurred + noise).astype(np.float32)
