"""Where the pipeline reads and writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.errors import MissingError
from lab.rooms.sweep.gemm.places import places


def test_there_must_be_a_sweep(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such sweep"):
        places(tmp_path / "nowhere")
