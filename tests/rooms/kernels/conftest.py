"""A profile of two ranks that communicate."""

from __future__ import annotations

import pytest

from tests.rooms.kernels.made import profile_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return profile_folder(tmp_path_factory.mktemp("run"), world_size=2, comm=True)
