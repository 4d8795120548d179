"""Two ranks, and their merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.recordings.merge import merge_json
from tests.recordings.merge.made import rank_trace, read
from tests.tracegen import BASE_NS


@pytest.fixture
def two(tmp_path: Path) -> list[tuple[int | None, Path]]:
    return [(None, rank_trace(tmp_path, rank, base_ns=BASE_NS + 1500 * rank)) for rank in (0, 1)]


@pytest.fixture
def merged(two, tmp_path: Path) -> dict[str, Any]:
    merge_json(two, tmp_path / "out.json.gz")
    return read(tmp_path / "out.json.gz")
