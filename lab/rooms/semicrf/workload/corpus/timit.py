"""A TIMIT folder, as the Linguistic Data Consortium ships it -> utterances with features and segments; and
these as the published benchmark's files.

`TRAIN|TEST/DRn/SPEAKER/*.PHN` holds lines `start_sample end_sample phone` at 16 kHz beside a WAV file (NIST
SPHERE or RIFF). SA sentences, which every speaker reads, are left out. The folding of 61 phones to 39 is that
of Lee and Hon (1989) as commonly used, with the glottal stop among the silences.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.core.files import replacing, write_atomic
from lab.errors import BadDataError, MissingError
from lab.rooms.semicrf.workload.corpus.sound import HOP, log_mel, mfcc, read_sound

_NAMES = (
    "aa ae ah aw ay b ch d dh dx eh er ey f g hh ih iy jh k l m n ng ow oy p r s sh sil t th uh uw v w y z"
)
PHONES_39 = tuple(_NAMES.split())
_FOLDS = {
    "aa": "ao",
    "ah": "ax ax-h",
    "ih": "ix",
    "er": "axr",
    "uw": "ux",
    "l": "el",
    "m": "em",
    "n": "en nx",
    "ng": "eng",
    "hh": "hv",
    "sh": "zh",
    "sil": "bcl dcl gcl pcl tcl kcl q pau epi h#",
}
FOLDING = {
    **{phone: phone for phone in PHONES_39 if phone != "sil"},
    **{old: new for new, olds in _FOLDS.items() for old in olds.split()},
}


def read_phones(path: Path) -> list[tuple[int, int, int]]:
    """(start_sample, end_sample, label of 39) of a .PHN file. Raises BadDataError with the line's number."""
    segments: list[tuple[int, int, int]] = []
    for number, line in enumerate(path.read_text(encoding="ascii", errors="replace").splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        try:
            start, end, phone = int(words[0]), int(words[1]), FOLDING[words[2].lower()]
        except (IndexError, ValueError, KeyError) as error:
            raise BadDataError(
                f"not a line `start end phone` of TIMIT: {line!r}", location=f"{path}:{number}"
            ) from error
        if end <= start or (segments and start < segments[-1][1]):
            raise BadDataError("segments overlap or end before they start", location=f"{path}:{number}")
        segments.append((start, end, PHONES_39.index(phone)))
    if not segments:
        raise BadDataError("no segment in this file", location=path)
    return segments


MOST_REST = 5
"""Frames after the last phone that belong to it; more are silence of their own."""


def frames_of(phones: list[tuple[int, int, int]], frames: int, path: Path) -> list[tuple[int, int, int]]:
    """Segments in frames that tile 0..frames: boundaries rounded to the hop, frames outside given to the
    ends, but for a longer rest, which is silence.

    A phone shorter than half a hop has no frame of its own and is left out; equal neighbours stay two
    segments.
    """
    if not frames:
        raise BadDataError("the sound is shorter than one window", location=path)
    if phones[-1][0] >= frames * HOP:
        raise BadDataError(
            f"its last phone starts at sample {phones[-1][0]}, and the sound has fewer than {frames * HOP}",
            location=path,
            fix="copy the sound again: it is cut off, or another sentence's",
        )
    if frames - round(phones[-1][1] / HOP) > MOST_REST:
        phones = [*phones, (phones[-1][1], frames * HOP, PHONES_39.index("sil"))]
    edges = [0, *(round(end / HOP) for _, end, _ in phones[:-1]), frames]
    edges = [min(edge, frames) for edge in edges]
    return [
        (start, end, label)
        for start, end, (_, _, label) in zip(edges[:-1], edges[1:], phones, strict=True)
        if end > start
    ]


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


def preprocess(
    timit_dir: Path, output_dir: Path, *, feature_type: str, n_mfcc: int, n_mels: int
) -> Iterator[str]:
    """Write the benchmark's files; -> one line per file. Each file is written whole or not at all."""
    for split in ("TRAIN", "TEST"):
        path = output_dir / f"{split.lower()}.jsonl"
        durations: dict[int, list[int]] = {}
        count = 0
        with replacing(path) as file:
            for row in read_split(timit_dir, split, feature_type=feature_type, n_mfcc=n_mfcc, n_mels=n_mels):
                features = np.round(row["features"], 5).tolist()
                file.write(msgspec.json.encode({**row, "features": features}) + b"\n")
                count += 1
                for start, end, label in row["segments"]:
                    durations.setdefault(label, []).append(end - start)
        yield f"{path}: {count} utterances"
        stats = {PHONES_39[label]: _stats(np.array(values)) for label, values in sorted(durations.items())}
        yield _write(output_dir / f"{split.lower()}_segment_stats.json", stats)
    mapping = {
        "phones_39": PHONES_39,
        "phone_to_idx": {p: i for i, p in enumerate(PHONES_39)},
        "phone_61_to_39": FOLDING,
    }
    yield _write(output_dir / "phone_mapping.json", mapping)


def _stats(values: np.ndarray) -> dict[str, float]:
    return {
        "count": len(values),
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "std": float(values.std()),
        "min": int(values.min()),
        "max": int(values.max()),
        "p95": float(np.percentile(values, 95)),
    }


def _write(path: Path, content: Any) -> str:
    write_atomic(path, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    return str(path)
