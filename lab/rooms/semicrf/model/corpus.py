"""Phoneme corpora: one made by known parameters, and files of the TIMIT benchmark's form. numpy only.

The synthetic corpus draws, for each utterance, phones by a bigram without repeats, durations by a shifted negative
binomial per phone, and features by an AR(1) process around the phone's mean with coarticulation at the boundaries. It
exercises every path; it is not speech.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.errors import BadDataError, MissingError
from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.model.timit import PHONES_39, is_timit, read_split

FEATURES = 39
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
        """(T,) int64, one label a frame."""
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


def load_corpus(config: TrainConfig) -> Corpus:
    """The corpus that `config.data` names, cropped if so asked, features normalised by the training set.

    Raises MissingError and BadDataError naming the file and line.
    """
    if config.data == "synthetic":
        corpus = synthetic(config)
    else:
        folder = Path(config.data)
        corpus = from_timit(folder) if is_timit(folder) else from_jsonl(folder)
    if config.fixed_length:
        corpus = cropped(corpus, config.fixed_length)
    for split in ("train", "dev", "test"):
        if not getattr(corpus, split):
            todo = (
                "a smaller --fixed-length keeps more of them"
                if config.fixed_length
                else "every split needs utterances"
            )
            raise BadDataError(f"no utterance is left in the {split} split", where=config.data, fix=todo)
    return corpus


def synthetic(config: TrainConfig) -> Corpus:
    """The generator's corpus; the same config gives the same bits."""
    dice = np.random.default_rng(config.seed)
    truth = Truth.draw(dice, config.phones)
    sizes = {
        "train": config.utterances,
        "dev": max(2, config.utterances // 4),
        "test": max(2, config.utterances // 4),
    }
    splits = {
        split: [truth.utterance(dice, f"{split}_{at:05d}", config.mean_segments) for at in range(count)]
        for split, count in sizes.items()
    }
    return normalised(Corpus(**splits, phones=PHONES_39[: config.phones], origin="synthetic"))


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
        # A negative binomial of shape 4 has a tail as durations of speech have.
        extra = self.duration_mean[phones] - 1
        durations = 1 + dice.negative_binomial(4, 4 / (4 + extra))
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
        for at in range(1, len(noise)):
            noise[at] = 0.6 * noise[at - 1] + 0.8 * noise[at]
        return (blurred + noise).astype(np.float32)


def from_jsonl(folder: Path) -> Corpus:
    """`{train,test}.jsonl` as `preprocess` writes them; a tenth of the training speakers become the dev split."""
    train, test = ([*_read_jsonl(folder / f"{split}.jsonl")] for split in ("train", "test"))
    mapping = folder / "phone_mapping.json"
    phones = tuple(msgspec.json.decode(mapping.read_bytes())["phones_39"]) if mapping.exists() else PHONES_39
    return normalised(_with_dev(train, test, phones, str(folder)))


def from_timit(folder: Path) -> Corpus:
    """A TIMIT folder read directly, with the benchmark's MFCC features."""
    train, test = (
        [
            Utterance(u["utterance_id"], u["speaker_id"], u["features"], tuple(u["segments"]))
            for u in read_split(folder, split)
        ]
        for split in ("TRAIN", "TEST")
    )
    return normalised(_with_dev(train, test, PHONES_39, str(folder)))


def cropped(corpus: Corpus, length: int) -> Corpus:
    """Every utterance cut to its first `length` frames, shorter ones left out: no frame is invented."""

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
    """z-scores by the training set's mean and deviation (at least 1e-8)."""
    frames = np.concatenate([u.features for u in corpus.train])
    mean, deviation = frames.mean(axis=0), np.maximum(frames.std(axis=0), 1e-8)

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


def _with_dev(train: list[Utterance], test: list[Utterance], phones: tuple[str, ...], origin: str) -> Corpus:
    speakers = sorted({u.speaker for u in train})
    held_out = set(speakers[:: max(2, min(10, len(speakers)))]) if len(speakers) > 1 else set()
    dev = [u for u in train if u.speaker in held_out]
    return Corpus([u for u in train if u.speaker not in held_out], dev, test, phones, origin)


def _read_jsonl(path: Path) -> Iterator[Utterance]:
    if not path.exists():
        raise MissingError(
            "no such file",
            where=path,
            fix="make it with: lab run semicrf preprocess --timit-dir ... --output-dir ...",
        )
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _utterance(line, f"{path}:{number}")


def _utterance(line: bytes, where: str) -> Utterance:
    try:
        row: dict[str, Any] = msgspec.json.decode(line)
        features = np.asarray(row["features"], dtype=np.float32)
        segments = tuple((int(s), int(e), int(c)) for s, e, c in row["segments"])
        name, speaker = str(row["utterance_id"]), str(row["speaker_id"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise BadDataError(
            f"this line is no utterance: {type(error).__name__}: {error}", where=where
        ) from error
    tiles = [0, *(end for _, end, _ in segments)]
    if (
        features.ndim != 2
        or not segments
        or [s[0] for s in segments] != tiles[:-1]
        or tiles[-1] != len(features)
    ):
        raise BadDataError("the segments do not tile the frames", where=where)
    if any(end <= start or label < 0 for start, end, label in segments):
        raise BadDataError("a segment is empty or its label is negative", where=where)
    return Utterance(name, speaker, features, segments)
