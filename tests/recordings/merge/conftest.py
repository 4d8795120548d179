"""Two ranks, and their merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.recordings.merge.made import merge, rank_trace, read
from tests.tracegen import BASE_NS


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    return [rank_trace(tmp_path, rank, base_ns=BASE_NS + 1500 * rank) for rank in (0, 1)]


@pytest.fixture
def merged(two: list[Path], tmp_path: Path) -> dict[str, Any]:
    merge(two, tmp_path / "out.json.gz")
    return read(tmp_path / "out.json.gz")
