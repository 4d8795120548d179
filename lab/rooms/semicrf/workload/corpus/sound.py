"""Sound files as numbers (NIST SPHERE, uncompressed, and RIFF, 16-bit mono at 16 kHz), and their features."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np

from lab.errors import BadDataError

RATE_HZ, WINDOW, HOP = 16000, 400, 160
BANDS = 40
"""Of the cepstra: at most as many coefficients as bands."""
MOST_BYTES = 64 << 20  # a TIMIT sentence is some 100 kB


def read_sound(path: Path) -> np.ndarray:
    """(N,) float64 in [-1, 1): 16-bit mono at 16 kHz, from NIST SPHERE (uncompressed) or RIFF."""
    if path.stat().st_size > MOST_BYTES:
        raise BadDataError("too large for one sentence", location=path)
    data = path.read_bytes()
    if data[:7] == b"NIST_1A":
        return _sphere(data, path)
    try:
        with wave.open(io.BytesIO(data)) as file:
            if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, RATE_HZ):
                raise BadDataError("not 16-bit mono at 16 kHz", location=path)
            body = file.readframes(file.getnframes())
            _check_whole(body, file.getnframes(), path)
            return _floats(body, "<i2")
    except (wave.Error, EOFError) as error:
        raise BadDataError(f"neither NIST SPHERE nor RIFF sound: {error}", location=path) from error


def _sphere(data: bytes, path: Path) -> np.ndarray:
    try:
        size = int(data[8:16])
        fields = dict(
            _field(line)
            for line in data[16:size].decode("ascii", "replace").splitlines()
            if line.count(" ") >= 2
        )
        promised = int(fields.get("sample_count", (len(data) - size) // 2))
    except ValueError as error:
        raise BadDataError(f"unreadable NIST SPHERE header: {error}", location=path) from error
    if fields.get("sample_rate", "16000") != str(RATE_HZ) or fields.get("channel_count", "1") != "1":
        raise BadDataError("not mono at 16 kHz", location=path)
    coding = fields.get("sample_coding", "pcm")
    if coding != "pcm":
        raise BadDataError(
            f"sample coding {coding!r}", location=path, fix="decompress it with NIST's w_decode or sox"
        )
    order = ">i2" if fields.get("sample_byte_format") == "10" else "<i2"
    body = data[size:]
    _check_whole(body, promised, path)
    return _floats(body[: 2 * promised], order)


def _check_whole(body: bytes, promised: int, path: Path) -> None:
    """Raises BadDataError where the header promises more samples than the file has."""
    if len(body) < 2 * promised:
        fix = "copy it again: its labels would belong to sound that is not there"
        raise BadDataError(f"truncated: {len(body) // 2} of {promised} samples", location=path, fix=fix)


def _floats(data: bytes, order: str) -> np.ndarray:
    samples: np.ndarray = np.frombuffer(data, order).astype(np.float64) / 32768.0
    return samples


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.split(" ", 2)
    return name, value.strip()


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
