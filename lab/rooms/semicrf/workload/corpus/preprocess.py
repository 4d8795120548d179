"""A TIMIT folder -> the benchmark's files: utterances, segment statistics, the phone mapping."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.core.files import replacing, write_atomic
from lab.rooms.semicrf.workload.corpus.phones import FOLDING, PHONES_39
from lab.rooms.semicrf.workload.corpus.timit import read_split


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
                file.write(
                    msgspec.json.encode({**row, "features": np.round(row["features"], 5).tolist()}) + b"\n"
                )
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
