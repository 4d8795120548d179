"""Utterances in the TIMIT benchmark's JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from operator import index
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.errors import BadDataError, MissingError
from lab.rooms.semicrf.workload.corpus.utterances import Utterance, tiled


def _read_jsonl(path: Path) -> Iterator[Utterance]:
    if not path.is_file():
        raise MissingError(
            "no such file",
            location=path,
            fix="make it with: lab run semicrf preprocess --timit-dir ... --output-dir ...",
        )
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _utterance(line, f"{path}:{number}")


def _utterance(line: bytes, location: str) -> Utterance:
    try:
        row: dict[str, Any] = decoded(line)
        with np.errstate(over="ignore"):  # named below
            features = np.asarray(row["features"], dtype=np.float32)
        segments = tuple((index(s), index(e), index(c)) for s, e, c in row["segments"])  # 5.9 is no frame
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
        raise BadDataError(
            problem, location=location, fix="leave the utterance out: it would spoil all by their mean"
        )
    return Utterance(name, speaker, features, segments, mended)


def decoded(line: bytes) -> Any:
    """The line's content; with NaN and Infinity, which Python's json writes though JSON has neither."""
    if b"NaN" in line or b"Infinity" in line:
        return json.loads(line)
    return msgspec.json.decode(line)
