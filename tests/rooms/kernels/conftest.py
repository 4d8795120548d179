"""A profile of two ranks that communicate, and a catalogue of three forwards."""

from __future__ import annotations

import pytest

from tests.rooms.kernels.made import catalogue_of, generation, profile_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return profile_folder(tmp_path_factory.mktemp("run"), world_size=2, comm=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return catalogue_of(generation(forwards=3).write(tmp_path_factory.mktemp("made") / "trace_rank0.json"))
