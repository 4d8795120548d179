"""The corpus that a config names, with its three splits."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lab.errors import BadDataError
from lab.rooms.semicrf.config import TrainConfig
from lab.rooms.semicrf.workload.corpus.jsonl import _read_jsonl
from lab.rooms.semicrf.workload.corpus.phones import PHONES_39
from lab.rooms.semicrf.workload.corpus.synthetic import synthetic
from lab.rooms.semicrf.workload.corpus.timit import is_timit, read_split
from lab.rooms.semicrf.workload.corpus.utterances import Corpus, Utterance, cropped, normalised


def load_corpus(config: TrainConfig) -> Corpus:
    """The corpus that `config.data` names, cropped if requested, features normalised by the training set.

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


def from_jsonl(folder: Path) -> Corpus:
    """`{train,test}.jsonl` as `preprocess` writes them; the dev split is a tenth of the training speakers."""
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


def _with_dev(train: list[Utterance], test: list[Utterance], phones: tuple[str, ...], origin: str) -> Corpus:
    speakers = sorted({u.speaker for u in train})
    held_out = set(speakers[:: max(2, min(10, len(speakers)))]) if len(speakers) > 1 else set()
    dev = [u for u in train if u.speaker in held_out]
    return Corpus([u for u in train if u.speaker not in held_out], dev, test, phones, origin)
