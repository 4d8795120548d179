"""Waiting for another rank is neither communication nor the cost of an op."""

from __future__ import annotations

import pytest

from lab.rooms.kernels.analyze import frame_of, shares
from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.report.sentences import _waits
from lab.rooms.kernels.trails import Trail
from tests.tracegen import TraceWriter


def two_ranks(folder, *, late_us: float):
    """Each rank: a GEMM of 100 us, then an all-reduce of 20 us that rank 1 enters so much later."""
    for rank in (0, 1):
        writer = TraceWriter(rank=rank, world_size=2)
        for at in (1000.0, 9000.0):
            begin = at + 110 + late_us * rank
            writer.gemm(64, 32, 128, at, 100)
            writer.all_reduce(1024, begin, at + 110 + late_us + 20 - begin)
        writer.write(folder / f"rank{rank}.json")
    return read_catalogue([Trail(rank=rank, trace=folder / f"rank{rank}.json") for rank in (0, 1)])


def test_a_collective_costs_what_it_moves_and_its_wait_is_told_apart(tmp_path):
    found = two_ranks(tmp_path, late_us=5000)
    by_class = shares(frame_of(found), "class").set_index("class")["time_ms"]
    assert by_class["gemm"] == pytest.approx(0.4) and by_class["comm"] == pytest.approx(0.08)
    comm = [one for one in found.launches if one.class_ == "comm"]
    assert sorted(round(one.own_us) for one in comm) == [20, 20, 20, 20]
    assert max(one.dur_us for one in comm) == 5020
    (told,) = _waits(found)
    assert "wait 10.00 ms for ranks that come later" in told


def test_ranks_that_come_together_wait_for_nobody(tmp_path):
    assert _waits(two_ranks(tmp_path, late_us=0)) == []
