"""The corpus that a config names, with its three splits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path

import msgspec
import numpy as np

from lab.core.words import plural
from lab.errors import BadDataError, MissingError
from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.workload.corpus.timit import PHONES_39, is_timit, read_split
from lab.rooms.semicrf.workload.corpus.utterances import (
    MENDED,
    Corpus,
    Note,
    Utterance,
    cropped,
    normalised,
    tiled,
)


def load_corpus(config: TrainConfig) -> Corpus:
    """The corpus that `config.data` names, cropped if requested, features normalised by the training set.

    Raises MissingError and BadDataError naming the file and line.
    """
    if config.data == "synthetic":
        corpus = synthetic(config)
    else:
        corpus = from_folder(Path(config.data))
    if config.fixed_length:
        corpus = cropped(corpus, config.fixed_length)
    corpus = replace(corpus, notes=notes_of(corpus))
    for split in ("train", "dev", "test"):
        if not getattr(corpus, split):
            fewer = "a smaller --fixed-length keeps more of them"
            fix = fewer if config.fixed_length else "every split needs utterances"
            raise BadDataError(f"no utterance is left in the {split} split", location=config.data, fix=fix)
    return corpus


def notes_of(corpus: Corpus) -> tuple[Note, ...]:
    """What was mended, and what the test set shares with the data that the model is trained on."""
    utterances = [*corpus.train, *corpus.dev, *corpus.test]
    counts = Counter(key for utterance in utterances for key in utterance.mended)
    notes = [Note(False, f"{plural(n, 'utterance')}: {MENDED[key]}") for key, n in sorted(counts.items())]
    trained = [*corpus.train, *corpus.dev]
    sounds = {utterance.features.tobytes() for utterance in trained}
    names = {utterance.name for utterance in trained}
    speakers = {utterance.speaker for utterance in trained}
    total = plural(len(corpus.test), "test utterance")
    twice = sum(u.name in names or u.features.tobytes() in sounds for u in corpus.test)
    alike = sum(u.speaker in speakers for u in corpus.test)
    if twice:
        notes.append(Note(True, f"{twice} of {total} are training utterances too: test figures are too good"))
    elif alike and corpus.origin != "synthetic":
        notes.append(Note(True, f"{alike} of {total} are of training speakers: test figures are too good"))
    return tuple(notes)


def from_folder(folder: Path) -> Corpus:
    """A TIMIT folder, with the benchmark's MFCC features, or `{train,test}.jsonl` as `preprocess` writes
    them; the dev split is a tenth of the training speakers.
    """
    phones = PHONES_39
    if is_timit(folder):
        train, test = ([*read_split(folder, split)] for split in ("TRAIN", "TEST"))
    else:
        train, test = ([*read_jsonl(folder / f"{split}.jsonl")] for split in ("train", "test"))
        mapping = folder / "phone_mapping.json"
        phones = phones_of(mapping) if mapping.exists() else phones
        reject_unlike([*train, *test], len(phones), folder)
    if not train:
        raise BadDataError("no utterance in the training set", location=str(folder))
    speakers = sorted({u.speaker for u in train})
    held_out = set(speakers[:: max(2, min(10, len(speakers)))]) if len(speakers) > 1 else set()
    dev = [u for u in train if u.speaker in held_out]
    train = [u for u in train if u.speaker not in held_out]
    return normalised(Corpus(train, dev, test, phones, str(folder)))


def read_jsonl(path: Path) -> Iterator[Utterance]:
    """Utterances in the TIMIT benchmark's JSON lines. Raises MissingError and BadDataError."""
    if not path.is_file():
        fix = "make it with: lab run semicrf preprocess --timit-dir ... --output-dir ..."
        raise MissingError("no such file", location=path, fix=fix)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _utterance(line, f"{path}:{number}")


def _utterance(line: bytes, location: str) -> Utterance:
    try:
        # Python's json writes NaN and Infinity, though JSON has neither.
        row = (json.loads if b"NaN" in line or b"Infinity" in line else msgspec.json.decode)(line)
        with np.errstate(over="ignore"):  # named below
            features = np.asarray(row["features"], dtype=np.float32)
        # 5.9 does not name a frame.
        segments = tuple((index(s), index(e), index(c)) for s, e, c in row["segments"])
        name, speaker = str(row["utterance_id"]), str(row["speaker_id"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise BadDataError(f"not an utterance: {type(error).__name__}: {error}", location=location) from error
    if features.ndim != 2 or not features.size:
        raise BadDataError("its frames have no features", location=location)
    try:
        segments, mended = tiled(segments, len(features))
    except ValueError as error:
        raise BadDataError(str(error), location=f"{location}, utterance {name}") from error
    if not np.isfinite(features).all():
        t, d = np.argwhere(~np.isfinite(features))[0].tolist()
        number = {"nan": "NaN"}.get(str(features[t, d]), f"{features[t, d]} in float32")
        problem = f"utterance {name}, frame {t}, feature {d} is {number}"
        fix = "leave the utterance out: it would spoil all by their mean"
        raise BadDataError(problem, location=location, fix=fix)
    return Utterance(name, speaker, features, segments, mended)


class Mapping(msgspec.Struct):
    """What is read of a phone_mapping.json."""

    phones_39: tuple[str, ...]


def phones_of(path: Path) -> tuple[str, ...]:
    """The names of the labels in their order. Raises BadDataError."""
    try:
        phones = msgspec.json.decode(path.read_bytes(), type=Mapping).phones_39
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadDataError(f"unreadable phones: {error}", location=path) from error
    twice = {phone for phone in phones if phones.count(phone) > 1}
    if twice:
        raise BadDataError(f"phones_39 has {', '.join(sorted(twice))} twice", location=path)
    return phones


def reject_unlike(utterances: list[Utterance], phones: int, folder: Path) -> None:
    """Raises BadDataError for features of another number than the first's, which numpy may repeat to fit,
    and for a label beyond the phones.
    """
    for utterance in utterances:
        features, expected = utterance.features.shape[1], utterances[0].features.shape[1]
        if features != expected:
            text = f"utterance {utterance.name} has {features} features per frame, the first {expected}"
            raise BadDataError(text, location=folder)
        highest = max(label for _, _, label in utterance.segments)
        if highest >= phones:
            text = f"utterance {utterance.name} has the label {highest}, and there are {phones} phones"
            raise BadDataError(text, location=folder, fix="phone_mapping.json beside it names them")


# The synthetic corpus is made by known parameters: it exercises every path and is not speech. For each
# utterance it draws phones by a bigram without repeats, durations by a shifted negative binomial per phone,
# and features by an AR(1) process around the phone's mean with coarticulation at the boundaries.

FEATURES = 39


def synthetic(config: TrainConfig) -> Corpus:
    """The generator's corpus; the same config gives the same bits."""
    dice = np.random.default_rng(config.seed)
    truth = Truth.draw(dice, config.phones)
    quarter = max(2, config.utterances // 4)
    train, dev, test = (
        [truth.utterance(dice, f"{split}_{number:05d}", config.mean_segments) for number in range(count)]
        for split, count in {"train": config.utterances, "dev": quarter, "test": quarter}.items()
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
        speaker = f"S{dice.integers(10**6):06d}"
        return Utterance(name, speaker, self.features(dice, phones, durations), segments)

    def features(self, dice: np.random.Generator, phones: Sequence[int], durations: np.ndarray) -> np.ndarray:
        clean = np.repeat(self.means[list(phones)], durations, axis=0)
        blurred = 0.25 * np.roll(clean, 1, axis=0) + 0.5 * clean + 0.25 * np.roll(clean, -1, axis=0)
        blurred[[0, -1]] = clean[[0, -1]]
        noise = dice.normal(0.0, self.noise, clean.shape)
        for frame in range(1, len(noise)):
            noise[frame] = 0.6 * noise[frame - 1] + 0.8 * noise[frame]
        return (blurred + noise).astype(np.float32)
