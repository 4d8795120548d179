"""The views against plain loops over known traces, and against published figures of real ones."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.recordings import views
from lab.recordings.kineto import read_kineto
from lab.recordings.tables import Table, Trace
from lab.recordings.views import gemms
from tests.tracegen import TraceWriter, cpu_step, training_step


def read(writer: TraceWriter, folder: Path) -> Trace:
    return read_kineto(writer.write(folder / "t.json"))


def two_steps(vendor: str = "nvidia") -> TraceWriter:
    writer = TraceWriter(world_size=2, vendor=vendor)
    training_step(writer, 5, 1000)
    training_step(writer, 6, 1050)
    return writer


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_the_timeline_counts_each_instant_once(tmp_path, vendor):
    found = views.gpu_timeline(read(two_steps(vendor), tmp_path))
    assert found == pytest.approx(
        {
            "computation_time_ms": 0.020,
            "exposed_comm_time_ms": 0.020,
            "exposed_memcpy_time_ms": 0.003,
            "busy_time_ms": 0.043,
            "idle_time_ms": 0.0385,
            "total_time_ms": 0.0815,
            "total_comm_time_ms": 0.030,
            "total_memcpy_time_ms": 0.003,
        }
    )


def test_a_timeline_of_one_step_holds_what_that_step_launched(tmp_path):
    writer = two_steps()
    writer.step(7, 1100, 50)
    op = writer.op("aten::add", 1148, 4)
    writer.kernel("late", 1152, 3, op=op)  # launched at 1147, runs after its step
    trace = read(writer, tmp_path)
    assert views.gpu_timeline(trace, steps=[7])["busy_time_ms"] == pytest.approx(0.003)
    assert views.gpu_timeline(trace, steps=[5])["busy_time_ms"] == pytest.approx(0.0215)
    assert views.gpu_timeline(trace, steps=[99])["total_time_ms"] == 0


def test_unlinked_kernels_count_as_busy_and_can_be_left_out(tmp_path):
    writer = two_steps()
    writer.kernel("from before the window", 990, 10)
    trace = read(writer, tmp_path)
    assert views.gpu_timeline(trace)["computation_time_ms"] == pytest.approx(0.030)
    assert views.gpu_timeline(trace, linked_only=True)["computation_time_ms"] == pytest.approx(0.020)
    assert views.link_ops(trace)[-1] == -1


def test_a_kernel_without_external_id_finds_its_op_by_correlation(tmp_path):
    trace = read(two_steps(), tmp_path)
    by_id = views.link_ops(trace)
    kernels = {name: getattr(trace.kernels, name) for name in trace.kernels}
    kernels["external_id"] = np.full(len(trace.kernels), -1)
    blind = Trace(**{**vars(trace), "kernels": Table(kernels)})
    assert views.link_ops(blind).tolist() == by_id.tolist()
    assert (by_id >= 0).sum() == 4


def test_classes_follow_name_kind_and_metadata(tmp_path):
    writer = TraceWriter(vendor="amd")
    for at, name in enumerate(
        ["ncclDevKernel_Generic(x)", "__amd_rocclr_copyBuffer", "Cijk_gemm", "RcclKernel"]
    ):
        writer.kernel(name, 100 + at, 1)
    writer.kernel("custom", 110, 1, **{"Collective name": "allreduce"})
    expected = [views.COMM, views.MEMCOPY, views.COMP, views.COMM, views.COMM]
    assert views.classify(read(writer, tmp_path)).tolist() == expected


def test_gemms_carry_shape_step_and_the_union_of_their_kernels(tmp_path):
    writer = two_steps()
    op = writer.gemm(4, 5, 6, 2000, 10)
    writer.kernel("splitk_reduce", 2005, 10, op=op)
    fill = {"External id": op, "device": 0, "stream": 7, "correlation": -1}
    writer.event("gpu_memset", "Memset", 1900, 50, args=fill, pid=0, tid=7)
    table = views.gemm_instances(read(writer, tmp_path))
    assert table.dur_ns.tolist() == [10_000, 10_000, 15_000]
    assert table.step.tolist() == [5, 6, -1]
    assert (table.M[2], table.N[2], table.K[2], table.B[2], table.transpose[2]) == (4, 5, 6, 1, "NN")
    assert table.kernels[2] == "nvjet_gemm ; splitk_reduce"


SHAPES = [
    ("aten::mm", "[[4,6],[6,5]]", "[[1,4],[5,1]]", (4, 5, 6, 1, False, "TN")),
    ("aten::addmm", "[[5],[4,6],[6,5],[],[]]", "[[1],[6,1],[1,6],[],[]]", (4, 5, 6, 1, True, "NT")),
    ("aten::bmm", "[[3,4,6],[3,6,5]]", "[[24,6,1],[30,5,1]]", (4, 5, 6, 3, False, "NN")),
    ("aten::baddbmm", "[[3,4,5],[3,4,6],[3,6,5],[],[]]", "[[],[24,6,1],[30,5,1]]", (4, 5, 6, 3, True, "NN")),
    ("aten::linear", "[[2,4,6],[5,6],[5]]", "[[24,6,1],[6,1],[1]]", (8, 5, 6, 1, True, "NN")),
    ("aten::linear", "[[2,4,6],[5,6],[]]", "[[24,6,1],[6,1],[]]", (8, 5, 6, 1, False, "NN")),
    ("aten::matmul", "[[2,4,6],[6,5]]", "[[24,6,1],[5,1]]", (8, 5, 6, 1, False, "NN")),
    ("aten::matmul", "[[2,3,4,6],[2,3,6,5]]", "", (4, 5, 6, 6, False, "??")),
    ("aten::mm", "[[4,6],[7,5]]", "", (-1, -1, -1, -1, False, "??")),
    ("aten::mm", "", "", (-1, -1, -1, -1, False, "??")),
    ("aten::mm", '[null,"x"]', "[3]", (-1, -1, -1, -1, False, "??")),
]


@pytest.mark.parametrize(("op", "dims", "strides", "expected"), SHAPES)
def test_gemm_sizes_are_read_from_the_arguments(op, dims, strides, expected):
    shape = gemms._gemm_shape(op, dims, '["float","float","float"]', strides)
    assert tuple(shape[name] for name in ("M", "N", "K", "B", "bias", "transpose")) == expected


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


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), min_size=1, max_size=5), max_size=6)
)
def test_the_time_of_each_group_is_the_union_of_its_spans(groups):
    groups = [sorted(group) for group in groups]
    rows = np.array([row for group in groups for row in group], dtype=np.int64).reshape(-1, 2)
    first = np.cumsum([0, *(len(group) for group in groups)])[: len(groups)]
    plain = [len({at for start, dur in group for at in range(start, start + dur)}) for group in groups]
    assert gemms._covered_per_group(rows[:, 0], rows[:, 1], first).tolist() == plain
    far = gemms._covered_per_group(rows[:, 0] * 2**55, rows[:, 1] * 2**55, first)
    assert (far // 2**55).tolist() == plain


def test_on_a_cpu_ops_and_gloo_ranges_stand_in_for_kernels(tmp_path):
    writer = TraceWriter(world_size=2, vendor="none")
    cpu_step(writer, 1, 1000)
    trace = read(writer, tmp_path)
    assert views.device_of(trace) == "cpu"
    found = views.gpu_timeline(trace)
    assert found["computation_time_ms"] == pytest.approx(0.012)
    assert found["total_comm_time_ms"] == pytest.approx(0.012)
    assert found["exposed_comm_time_ms"] == pytest.approx(0.009)
    assert found["total_time_ms"] == pytest.approx(0.021) == found["busy_time_ms"]
    gemm = views.gemm_instances(trace)
    assert (gemm.op.tolist(), gemm.dur_ns.tolist(), gemm.step.tolist()) == (["aten::mm"], [10_000], [1])
    comm = views.collective_instances(trace)
    assert (comm.collective[0], comm.msg_bytes[0], comm.grid_x[0], comm.step[0]) == (
        "all_reduce",
        2048,
        -1,
        1,
    )


def test_waiting_in_autograd_and_c10d_is_not_computation(tmp_path):
    writer = TraceWriter(vendor="none")
    writer.op("autograd::engine::evaluate_function: X", 0, 100)
    writer.op("AddmmBackward0", 0, 100)
    writer.op("c10d::allreduce_", 10, 5)
    writer.op("mkldnn::_linear_pointwise", 20, 7)
    found = views.gpu_timeline(read(writer, tmp_path))
    assert (found["computation_time_ms"], found["total_comm_time_ms"]) == (0.007, 0.005)


TREE = st.recursive(st.just([]), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=10)


def lay_out(tree: list, start: int, rows: list[tuple[int, int]]) -> int:
    """Nested spans from a tree; returns where the span ends."""
    at = start + 1
    mine = len(rows)
    rows.append((0, 0))
    for child in tree:
        at = lay_out(child, at, rows) + 1
    rows[mine] = (start, at)
    return at


@given(TREE, st.lists(st.integers(-1, 60), min_size=1, max_size=20))
def test_the_innermost_op_is_the_shortest_one_around(tree, asked):
    rows: list[tuple[int, int]] = []
    lay_out(tree, 0, rows)
    starts, ends = np.array(rows).T
    zero = np.zeros(len(rows), dtype=np.int64)
    ops = Table({"ts_ns": starts, "dur_ns": ends - starts, "pid": zero, "tid": zero})
    at = np.array(asked)
    nothing = np.zeros(len(at), dtype=np.int64)
    plain = []
    for time in asked:
        around = [(end - start, row) for row, (start, end) in enumerate(rows) if start <= time <= end]
        plain.append(min(around)[0] if around else None)
    found = views.innermost(ops, nothing, nothing, at)
    assert [int(ends[row] - starts[row]) if row >= 0 else None for row in found] == plain
    assert (views.innermost(ops, nothing + 1, nothing, at) == -1).all()


H200 = {
    "256thread/nccl_28channels": (46.557, 144.618, 100.284, 2.735, 149.622, 30.030),
    "256thread/nccl_42channels": (48.911, 122.037, 75.884, 2.728, 127.568, 31.369),
    "512thread/nccl_28channels": (37.568, 54.953, 45.275, 47.760, 130.789, 21.667),
    "512thread/nccl_42channels": (34.754, 14.883, 14.883, 95.529, 145.336, 19.236),
}


@pytest.mark.data
@pytest.mark.parametrize("config", H200)
def test_the_h200_sweep_gives_its_golden_numbers(shared_data, config):
    trace = read_kineto(shared_data / "sweep_h200" / config / "torch_profiler/rank0/trace_step7.json.gz")
    found = views.gpu_timeline(trace)
    gemm = views.gemm_instances(trace)
    names = ("computation", "total_comm", "exposed_comm", "idle", "total")
    figures = [found[f"{name}_time_ms"] for name in names] + [gemm.dur_ns.sum() / 1e6]
    assert figures == pytest.approx(H200[config], abs=0.0006)
    assert len(gemm) == 154 and set(gemm.step) == {5, 6}
    assert found["busy_time_ms"] == pytest.approx(found["total_time_ms"] - found["idle_time_ms"])


@pytest.mark.data
def test_both_ways_to_link_agree_on_every_h200_kernel(shared_data):
    place = shared_data / "sweep_h200/256thread/nccl_28channels/torch_profiler/rank0/trace_step7.json.gz"
    trace = read_kineto(place)
    kernels = {name: getattr(trace.kernels, name) for name in trace.kernels}
    kernels["external_id"] = np.full(len(trace.kernels), -1)
    blind = Trace(**{**vars(trace), "kernels": Table(kernels)})
    assert views.link_ops(blind).tolist() == views.link_ops(trace).tolist()


@pytest.mark.data
def test_the_mi300_timeline_equals_tracelens_once_unlinked_kernels_are_left_out(shared_data):
    trace = read_kineto(shared_data / "rocm/mi300_qwen1.5_0.5b.json.gz")
    with (shared_data / "rocm/mi300_qwen1.5_0.5b_reference/gpu_timeline.csv").open() as file:
        reference = {f"{row['type']}_ms": float(row["time ms"]) for row in csv.DictReader(file)}
    linked = views.gpu_timeline(trace, linked_only=True)
    assert linked == pytest.approx(reference, rel=1e-3, abs=1e-5)
    assert views.gpu_timeline(trace)["computation_time_ms"] > 1.4 * linked["computation_time_ms"]


@pytest.mark.data
def test_the_mi300_gemms_equal_tracelens(shared_data):
    gemm = views.gemm_instances(read_kineto(shared_data / "rocm/mi300_qwen1.5_0.5b.json.gz"))
    with (shared_data / "rocm/mi300_qwen1.5_0.5b_reference/GEMM.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["name"] in views.GEMM_OPS]
    assert rows
    for row in rows:
        sizes = [int(row[f"param: {name}"]) for name in ("B", "M", "N", "K")]
        mask = (gemm.op == row["name"]) & (np.stack([gemm.B, gemm.M, gemm.N, gemm.K], 1) == sizes).all(axis=1)
        strides = row["param: stride_A"] + " " + row["param: stride_B"]
        mask &= gemm.strides == strides
        assert mask.sum() == int(row["name_count"])
        mean_us = gemm.dur_ns[mask].mean() / 1000
        assert mean_us == pytest.approx(float(row["Kernel Time (µs)_mean"]), rel=1e-3)


@pytest.mark.data
def test_unlinked_collectives_of_the_mi300_ddp_run_stay_visible(shared_data):
    table = views.collective_instances(read_kineto(shared_data / "rocm/mi300_resnet_ddp_rank0of8.json.gz"))
    assert len(table) == 17 and (table.collective == "").sum() == 5
    assert {(g, b) for g, b in zip(table.grid_x, table.block_x, strict=True)} == {
        (-1, -1),
        (1, 256),
        (56, 256),
    }
