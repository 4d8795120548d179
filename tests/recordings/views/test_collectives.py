"""Which collectives ran."""

from __future__ import annotations

import pytest

from lab.recordings import views
from lab.recordings.kineto import read_kineto
from tests.recordings.views.made import read, two_steps
from tests.tracegen import TraceWriter


def test_collectives_carry_size_group_and_launch_shape(tmp_path):
    table = views.collective_instances(read(two_steps(), tmp_path))
    assert table.collective.tolist() == ["allreduce"] * 2
    assert table.msg_bytes.tolist() == [4096] * 2
    assert (table.grid_x[0], table.block_x[0], table.group_size[0], table.pg_ranks[0]) == (
        28,
        288,
        2,
        "[0, 1]",
    )
    assert table.step.tolist() == [5, 6]


def test_a_collective_kernel_without_metadata_is_a_row_all_the_same(tmp_path):
    writer = two_steps("amd")
    writer.kernel("ncclDevKernel_Generic(x)", 900, 5)
    table = views.collective_instances(read(writer, tmp_path))
    assert table.collective.tolist() == ["", "allreduce", "allreduce"]
    assert (table.grid_x[0], table.msg_bytes[0], table.dtype[0]) == (-1, -1, "")


def test_metadata_that_only_the_op_has_reach_its_collective_kernel(tmp_path):
    writer = TraceWriter(world_size=2)
    told = {
        "Collective name": "allreduce",
        "In msg nelems": 64,
        "Out msg nelems": 64,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Seq": 7,
        "In split size": [1, 2],
    }
    op = writer.op("record_param_comms", 1000, 5, **told)
    writer.kernel("ncclKernel_AllReduce_RING_LL_Sum_float", 1010, 20, op=op)
    table = views.collective_instances(read(writer, tmp_path))
    assert (table.collective[0], table.msg_bytes[0], table.seq[0], table.pg_ranks[0]) == (
        "allreduce",
        256,
        7,
        "[0, 1]",
    )
    assert (table.in_split[0], table.out_split[0]) == ("[1,2]", "")


@pytest.mark.data
def test_unlinked_collectives_of_the_mi300_ddp_run_stay_visible(shared_data):
    table = views.collective_instances(read_kineto(shared_data / "rocm/mi300_resnet_ddp_rank0of8.json.gz"))
    assert len(table) == 17 and (table.collective == "").sum() == 5
    assert {(g, b) for g, b in zip(table.grid_x, table.block_x, strict=True)} == {
        (-1, -1),
        (1, 256),
        (56, 256),
    }
