"""A corpus made by known parameters: it exercises every path and is not speech.

For each utterance it draws phones by a bigram without repeats, durations by a shifted negative binomial per
phone, and features by an AR(1) process around the phone's mean with coarticulation at the boundaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.workload.corpus.timit import PHONES_39
from lab.rooms.semicrf.workload.corpus.utterances import Corpus, Utterance, normalised

FEATURES = 39


def synthetic(config: TrainConfig) -> Corpus:
    """The generator's corpus; the same config gives the same bits."""
    dice = np.random.default_rng(config.seed)
    truth = Truth.draw(dice, config.phones)
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

    def utterance(self, dice: np.random.Generator, name: str, mean_segments: int) -> Utterance:
        count = max(2, int(dice.poisson(mean_segments)))
        phones = [int(dice.integers(len(self.means)))]
        while len(phones) < count:
            phones.append(int(dice.choice(len(self.means), p=self.bigram[phones[-1]])))
        mean = self.duration_mean[phones]
        durations = 1 + dice.negative_binomial(4, 4 / (4 + (mean - 1)))  # a tail as speech has, of shape 4
        ends = np.cumsum(durations).tolist()
        segments = tuple(zip([0, *ends[:-1]], ends, phones, strict=True))
        return Utterance(
            name, f"S{dice.integers(10**6):06d}", self.features(dice, phones, durations), segments
        )

    def features(self, dice: np.random.Generator, phones: Sequence[int], durations: np.ndarray) -> np.ndarray:
        clean = np.repeat(self.means[list(phones)], durations, axis=0)
        blurred = 0.25 * np.roll(clean, 1, axis=0) + 0.5 * clean + 0.25 * np.roll(clean, -1, axis=0)
        blurred[[0, -1]] = clean[[0, -1]]
        noise = dice.normal(0.0, self.noise, clean.shape)
        for frame in range(1, len(noise)):
            noise[frame] = 0.6 * noise[frame - 1] + 0.8 * noise[frame]
        return (blurred + noise).astype(np.float32)
