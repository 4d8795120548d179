"""How busy the GPU was."""

from __future__ import annotations

import csv

import pytest

from lab.recordings import views
from lab.recordings.kineto import read_kineto
from tests.recordings.views.made import read, two_steps
from tests.recordings.views.test_launches import H200
from tests.tracegen import TraceWriter, cpu_step


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


def test_classes_follow_name_kind_and_metadata(tmp_path):
    writer = TraceWriter(vendor="amd")
    for at, name in enumerate(
        ["ncclDevKernel_Generic(x)", "__amd_rocclr_copyBuffer", "Cijk_gemm", "RcclKernel"]
    ):
        writer.kernel(name, 100 + at, 1)
    writer.kernel("custom", 110, 1, **{"Collective name": "allreduce"})
    expected = [views.COMM, views.MEMCOPY, views.COMP, views.COMM, views.COMM]
    assert views.classify(read(writer, tmp_path)).tolist() == expected


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
def test_the_mi300_timeline_equals_tracelens_once_unlinked_kernels_are_left_out(shared_data):
    trace = read_kineto(shared_data / "rocm/mi300_qwen1.5_0.5b.json.gz")
    with (shared_data / "rocm/mi300_qwen1.5_0.5b_reference/gpu_timeline.csv").open() as file:
        reference = {f"{row['type']}_ms": float(row["time ms"]) for row in csv.DictReader(file)}
    linked = views.gpu_timeline(trace, linked_only=True)
    assert linked == pytest.approx(reference, rel=1e-3, abs=1e-5)
    assert views.gpu_timeline(trace)["computation_time_ms"] > 1.4 * linked["computation_time_ms"]
