"""Recordings of one small training step, and plants in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests import conftest

SHARED = conftest.SHARED / "training_numerics"


def shared(name: str) -> Path:
    return SHARED / f"ops_{name}.jsonl.gz"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def write(path: Path, rows: list[dict]) -> Path:
    path.write_bytes(gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows)))
    return path
