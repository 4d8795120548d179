"""Launches that graphs replayed: how their op and layer were found, and which op counts them."""

from __future__ import annotations

from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.trails import Trail
from tests.recordings.graphs.made import Events, capture_into, decoder, replay_into


def test_launches_that_a_graph_replayed(tmp_path):
    replayed, captured = Events(), Events()
    replay_into(replayed, [one.kernel for one in decoder()])
    capture_into(captured, decoder())
    trail = Trail(rank=0, trace=replayed.write(tmp_path / "replay.json"))
    found = read_catalogue([trail], [captured.write(tmp_path / "capture.json")])
    assert {(one.op_rule, one.layer_rule, one.confidence) for one in found.launches if one.layer} == {
        ("order", "order", "exact")
    }
    # An op counts its launches, each once, whoever else has looked at it.
    by_op = {op.op_id: op.num_launches for op in found.ops}
    assert sum(by_op.values()) == sum(one.op_id >= 0 for one in found.launches)
    (book,) = found.books
    assert book.records() == found.ops
    times = [one.ts_us for one in found.launches]
    assert times == sorted(times) and times[0] == 0.0
