"""Sound files as numbers: NIST SPHERE (uncompressed) and RIFF, 16-bit mono at 16 kHz."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np

from lab.errors import BadDataError
from lab.rooms.semicrf.workload.corpus.features import RATE_HZ

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
