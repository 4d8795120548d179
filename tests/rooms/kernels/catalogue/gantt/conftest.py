"""One generation with communication as bars."""

from __future__ import annotations

import pytest

from lab.rooms.kernels.catalogue.gantt.bars import bars_of
from lab.rooms.kernels.catalogue.rank import read_rank
from lab.rooms.kernels.trails import Trail
from tests.rooms.kernels.made import generation


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    path = generation(forwards=3, comm=True).write(tmp_path_factory.mktemp("gantt") / "trace_rank0.json")
    return bars_of([read_rank(Trail(rank=0, trace=path))])
