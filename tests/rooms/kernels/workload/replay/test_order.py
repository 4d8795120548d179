"""The recording in order."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.kernels.replay.calls.source import read_plan  # noqa: E402
from tests.rooms.kernels.workload.replay.made import CPU, spec  # noqa: E402


def test_only_indices_keep_their_own_values_in_order_other_integers_flow_from_op_to_op(recording, tmp_path):
    from lab.rooms.kernels.workload.replay.order import InOrder

    plan = read_plan(recording / "trace.json", recording / "et.json")
    order = InOrder(plan, {}, CPU)
    table, index = (
        spec("int64", shape=(3,), stride=(1,), low=0, high=9),
        spec("int64", shape=(3,), stride=(1,), low=0, high=9, index=True),
    )
    order.memory.buffers[5] = torch.tensor([100, 200, 300]).untyped_storage()
    assert order._fetch((0, 0), table, 5, 0)().tolist() == [100, 200, 300]
    assert max(order._fetch((0, 0), index, 5, 0)().tolist()) <= 9
