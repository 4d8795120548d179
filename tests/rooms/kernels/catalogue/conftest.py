"""A catalogue of three forwards."""

from __future__ import annotations

import pytest

from tests.rooms.kernels.catalogue.traces import catalogue_of
from tests.rooms.kernels.made import generation


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return catalogue_of(generation(forwards=3).write(tmp_path_factory.mktemp("made") / "trace_rank0.json"))
