"""A TIMIT folder, as the Linguistic Data Consortium ships it -> utterances with features and segments; and
these as the published benchmark's files.

`TRAIN|TEST/DRn/SPEAKER/*.PHN` holds lines `start_sample end_sample phone` at 16 kHz beside a WAV file (NIST
SPHERE or RIFF). SA sentences, which every speaker reads, are left out. The folding of 61 phones to 39 is that
of Lee and Hon (1989) as commonly used, with the glottal stop among the silences.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.core.files import replacing, write_atomic
from lab.errors import BadDataError, MissingError
from lab.rooms.semicrf.workload.corpus.utterances import Utterance

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
        location = f"{path}:{number}"
        try:
            start, end, phone = int(words[0]), int(words[1]), FOLDING[words[2].lower()]
        except (IndexError, ValueError, KeyError) as error:
            text = f"not a line `start end phone` of TIMIT: {line!r}"
            raise BadDataError(text, location=location) from error
        if end <= start or (segments and start < segments[-1][1]):
            raise BadDataError("segments overlap or end before they start", location=location)
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
    edges = [0, *(min(round(end / HOP), frames) for _, end, _ in phones[:-1]), frames]
    tiles = zip(edges[:-1], edges[1:], (label for _, _, label in phones), strict=True)
    return [(start, end, label) for start, end, label in tiles if end > start]


def is_timit(folder: Path) -> bool:
    return _child(folder, "TRAIN") is not None and _child(folder, "TEST") is not None


def read_split(
    folder: Path, split: str, *, feature_type: str = "mfcc", n_mfcc: int = 13, n_mels: int = 80
) -> Iterator[Utterance]:
    """Utterances of TRAIN or TEST in the order of their paths.

    Raises MissingError for a sentence without its sound, BadDataError for a broken file, naming it.
    """
    root = _child(folder, split)
    if root is None:
        fix = "name the folder that holds TRAIN and TEST"
        raise MissingError(f"no folder {split}", location=folder, fix=fix)
    phn = sorted(p for p in root.rglob("*") if p.suffix.lower() == ".phn")
    phn = [path for path in phn if not path.stem.lower().startswith("sa")]
    if not phn:
        raise MissingError("no .PHN file below this folder", location=root)
    for path in phn:
        samples = read_sound(_sound_beside(path))
        features = mfcc(samples, n_mfcc) if feature_type == "mfcc" else log_mel(samples, n_mels)
        segments = tuple(frames_of(read_phones(path), len(features), path))
        speaker = path.parent.name.upper()
        name = f"{path.parent.parent.name.upper()}_{speaker}_{path.stem.upper()}"
        yield Utterance(name, speaker, features, segments)


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
            for u in read_split(timit_dir, split, feature_type=feature_type, n_mfcc=n_mfcc, n_mels=n_mels):
                row = {
                    "utterance_id": u.name,
                    "speaker_id": u.speaker,
                    "features": np.round(u.features, 5).tolist(),
                    "segments": u.segments,
                    "labels": u.labels.tolist(),
                }
                file.write(msgspec.json.encode(row) + b"\n")
                count += 1
                for start, end, label in u.segments:
                    durations.setdefault(label, []).append(end - start)
        yield f"{path}: {count} utterances"
        stats = {PHONES_39[label]: _stats(np.array(values)) for label, values in sorted(durations.items())}
        yield _write(output_dir / f"{split.lower()}_segment_stats.json", stats)
    mapping = {"phones_39": PHONES_39, "phone_to_idx": {p: i for i, p in enumerate(PHONES_39)}}
    yield _write(output_dir / "phone_mapping.json", {**mapping, "phone_61_to_39": FOLDING})


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


# Sound files as numbers (NIST SPHERE, uncompressed, and RIFF, 16-bit mono at 16 kHz), and their features.

RATE_HZ, WINDOW, HOP = 16000, 400, 160
BANDS = 40
"""Of the cepstra: at most as many coefficients as bands."""
MOST_BYTES = 64 << 20  # a TIMIT sentence is some 100 kB


def read_sound(path: Path) -> np.ndarray:
    """(N,) float64 in [-1, 1). Raises BadDataError, also where the header promises more samples than the file
    has.
    """
    if path.stat().st_size > MOST_BYTES:
        raise BadDataError("too large for one sentence", location=path)
    data = path.read_bytes()
    body, promised, order = (_sphere if data[:7] == b"NIST_1A" else _riff)(data, path)
    if len(body) < 2 * promised:
        fix = "copy it again: its labels would belong to sound that is not there"
        raise BadDataError(f"truncated: {len(body) // 2} of {promised} samples", location=path, fix=fix)
    samples: np.ndarray = np.frombuffer(body[: 2 * promised], order).astype(np.float64) / 32768.0
    return samples


def _riff(data: bytes, path: Path) -> tuple[bytes, int, str]:
    """(samples, their number by the header, their order of bytes)."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, RATE_HZ):
                raise BadDataError("not 16-bit mono at 16 kHz", location=path)
            return file.readframes(file.getnframes()), file.getnframes(), "<i2"
    except (wave.Error, EOFError) as error:
        raise BadDataError(f"neither NIST SPHERE nor RIFF sound: {error}", location=path) from error


def _sphere(data: bytes, path: Path) -> tuple[bytes, int, str]:
    try:
        size = int(data[8:16])
        lines = (line.split(" ", 2) for line in data[16:size].decode("ascii", "replace").splitlines())
        fields = {words[0]: words[2].strip() for words in lines if len(words) == 3}
        promised = int(fields.get("sample_count", (len(data) - size) // 2))
    except ValueError as error:
        raise BadDataError(f"unreadable NIST SPHERE header: {error}", location=path) from error
    if fields.get("sample_rate", "16000") != str(RATE_HZ) or fields.get("channel_count", "1") != "1":
        raise BadDataError("not mono at 16 kHz", location=path)
    coding = fields.get("sample_coding", "pcm")
    if coding != "pcm":
        fix = "decompress it with NIST's w_decode or sox"
        raise BadDataError(f"sample coding {coding!r}", location=path, fix=fix)
    return data[size:], promised, ">i2" if fields.get("sample_byte_format") == "10" else "<i2"


def mfcc(samples: np.ndarray, count: int = 13) -> np.ndarray:
    """(T, 3 * count): cepstra of 40 mel bands with first and second differences."""
    log_bands = log_mel(samples, BANDS)
    band = np.arange(BANDS)
    basis = np.sqrt(2 / BANDS) * np.cos(np.pi * np.outer(band + 0.5, np.arange(count)) / BANDS)
    basis[:, 0] /= np.sqrt(2)
    cepstra = log_bands @ basis
    slope = _delta(cepstra)
    return np.concatenate([cepstra, slope, _delta(slope)], axis=1).astype(np.float32)


def log_mel(samples: np.ndarray, bands: int = 80) -> np.ndarray:
    """(T, bands) log energies of 25 ms windows every 10 ms, centred by reflection; T = 1 + N // hop."""
    if len(samples) < WINDOW:
        return np.zeros((0, bands), dtype=np.float32)
    padded = np.pad(samples, WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW + 1)[:-1], n=512)) ** 2
    energies: np.ndarray = np.log(power @ _filters(bands).T + 1e-10)
    return energies.astype(np.float32)


def _filters(bands: int) -> np.ndarray:
    """(bands, 257) triangles equally wide in mel (HTK's formula)."""
    mel_top = 2595 * np.log10(1 + RATE_HZ / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, mel_top, bands + 2) / 2595) - 1)
    bins = np.linspace(0, RATE_HZ / 2, 257)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    filters: np.ndarray = np.clip(np.minimum(rising, falling), 0.0, None)
    return filters


def _delta(values: np.ndarray) -> np.ndarray:
    """Regression slope over two frames on each side, the ends repeated (HTK's delta)."""
    if not len(values):
        return values
    padded = np.pad(values, ((2, 2), (0, 0)), mode="edge")
    slope: np.ndarray = (padded[3:-1] - padded[1:-3] + 2 * (padded[4:] - padded[:-4])) / 10
    return slope
