"""Uneven ranks and launches without an op are reported."""

from __future__ import annotations

from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.trails import trails
from tests.rooms.kernels.catalogue.traces import catalogue_of
from tests.rooms.kernels.made import generation


def test_ranks_that_launched_unequal_numbers_are_named(tmp_path):
    generation(forwards=3, rank=0, world_size=2).write(tmp_path / "trace_rank0.json")
    short = generation(forwards=3, rank=1, world_size=2)
    short.events = [e for e in short.events if not (e["name"] == "nvjet_gemm" and e["ts"] > 3200)]
    short.write(tmp_path / "trace_rank1.json")
    found = read_catalogue(trails(tmp_path))
    assert any("different counts on different ranks" in text and "0:4 1:2" in text for text in found.problems)


def test_a_launch_without_an_op_is_counted_and_reported(tmp_path):
    writer = generation(forwards=1)
    writer.kernel("orphan", 5000, 20)
    found = catalogue_of(writer.write(tmp_path / "t.json"))
    assert found.launches[-1].op_id == -1 and found.launches[-1].name == "orphan"
    assert any("1 of 5 launches" in text and "have no op" in text for text in found.problems)
