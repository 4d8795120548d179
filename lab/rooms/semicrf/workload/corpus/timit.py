"""A TIMIT folder, as the Linguistic Data Consortium ships it -> utterances with features and segments.

`TRAIN|TEST/DRn/SPEAKER/*.PHN` holds lines `start_sample end_sample phone` at 16 kHz beside a WAV file (NIST
SPHERE or RIFF). SA sentences, which every speaker reads, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.errors import MissingError
from lab.rooms.semicrf.workload.corpus.phones import frames_of, read_phones
from lab.rooms.semicrf.workload.corpus.sound import log_mel, mfcc, read_sound


def is_timit(folder: Path) -> bool:
    return _child(folder, "TRAIN") is not None and _child(folder, "TEST") is not None


def read_split(
    folder: Path, split: str, *, feature_type: str = "mfcc", n_mfcc: int = 13, n_mels: int = 80
) -> Iterator[dict[str, Any]]:
    """Utterances of TRAIN or TEST in the order of their paths.

    Each is a dict: utterance_id, speaker_id, features (T, D), labels, segments. Raises MissingError for a
    sentence without its sound, BadDataError for a broken file, naming it.
    """
    root = _child(folder, split)
    if root is None:
        raise MissingError(
            f"no folder {split}", location=folder, fix="name the folder that holds TRAIN and TEST"
        )
    phn = sorted(
        p for p in root.rglob("*") if p.suffix.lower() == ".phn" and not p.stem.lower().startswith("sa")
    )
    if not phn:
        raise MissingError("no .PHN file below this folder", location=root)
    for path in phn:
        samples = read_sound(_sound_beside(path))
        features = mfcc(samples, n_mfcc) if feature_type == "mfcc" else log_mel(samples, n_mels)
        segments = frames_of(read_phones(path), len(features), path)
        speaker = path.parent.name.upper()
        yield {
            "utterance_id": f"{path.parent.parent.name.upper()}_{speaker}_{path.stem.upper()}",
            "speaker_id": speaker,
            "features": features,
            "segments": segments,
            "labels": [label for start, end, label in segments for _ in range(end - start)],
        }


def _sound_beside(path: Path) -> Path:
    for name in (f"{path.stem}{end}" for end in (".WAV", ".wav", ".Wav", ".WAV.wav", ".wav.wav")):
        if (path.parent / name).exists():
            return path.parent / name
    raise MissingError("no WAV file beside this .PHN file", location=path)


def _child(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / name, folder / name.lower()) if p.is_dir()), None)
