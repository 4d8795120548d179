"""What a class of collectives costs a step once nobody is late."""

from __future__ import annotations

import pytest

from lab.recordings.kineto import read_kineto
from lab.recordings.ranks import account_of, work_of
from lab.recordings.ranks.costs import Class, costs_of
from lab.recordings.ranks.explain import explain
from tests.recordings.ranks.made import LAYERS, TRANSFER_US, Job


def _costs(job: Job):
    (one,) = explain([account_of(job.play())])
    return costs_of(one)


def test_exposed_transfers_cost_their_length_and_late_ranks_add_nothing():
    (plain,) = _costs(Job()).values()
    (late,) = _costs(Job(late={(3, 1): 20.0})).values()
    (slow,) = _costs(Job(link=2.0)).values()
    assert plain.cost_ms == pytest.approx(late.cost_ms, rel=0.02)
    assert slow.cost_ms - plain.cost_ms == pytest.approx(LAYERS * TRANSFER_US / 1e3, rel=0.1)


def test_latencies_of_the_recorded_sweep_are_those_known(shared_data):
    """Transfer of one call at 256 threads, 28 channels: shortest time after the last arrival, median us."""
    folder = shared_data / "sweep_h200/256thread/nccl_28channels/torch_profiler"
    works = {
        rank: work_of(read_kineto(folder / f"rank{rank}/trace_step7.json.gz"), rank) for rank in range(8)
    }
    (one,) = explain([account_of(works)])
    found = costs_of(one)
    known = {
        Class("all_gather", 8_392_704, 8): (30.6, 27, 640),
        Class("all_gather", 100_679_680, 8): (243, 28, 288),
        Class("reduce_scatter", 16_785_408, 8): (35, 28, 640),
        Class("reduce_scatter", 201_359_360, 8): (445, 28, 288),
    }
    assert set(found) == set(known)
    for name, (latency_us, grid, block) in known.items():
        assert found[name].latency_us == pytest.approx(latency_us, abs=0.5)
        assert (found[name].grid, found[name].block) == (grid, block)
        assert 0 <= found[name].least_ms <= found[name].cost_ms
