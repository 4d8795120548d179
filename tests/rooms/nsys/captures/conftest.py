"""A small training run, and a recorded one."""

from __future__ import annotations

import gzip

import pytest

from tests.conftest import SHARED
from tests.recordings.sqlgen import Export, training_step


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return training_step(Export()).write(tmp_path_factory.mktemp("nsys") / "run.sqlite")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("nsys") / "transformer_2layer.sqlite"
    path.write_bytes(gzip.decompress((SHARED / "nsys_h200" / "transformer_2layer.sqlite.gz").read_bytes()))
    return path
