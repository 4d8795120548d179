"""Counts add up to every launch, times to its kernel time; ranks fold; forwards are those that ran."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.errors import BadDataError
from lab.recordings.kineto import read_kineto
from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.trails import trails
from tests.rooms.kernels.catalogue.traces import catalogue_of
from tests.rooms.kernels.made import profile_folder
from tests.tracegen import TraceWriter

RECORDINGS = (
    "kernels_h200/bloom560m_generate",
    "kernels_h200/cs336_small_training",
    "rocm/mi300_qwen1.5_0.5b",
    "rocm/mi300_resnet_ddp_rank0of8",
)


def test_launches_have_their_forward_and_owner(made):
    first = made.launches[0]
    assert (first.phase, first.forward, first.ts_us) == ("prefill", 0, 0.0)
    owners = {op.op_id: op for op in made.ops}
    assert owners[first.op_id].name == "aten::mm" and owners[first.op_id].num_launches == 1


def test_ranks_fold_into_one_signature_and_are_told_apart(tmp_path):
    found = read_catalogue(trails(profile_folder(tmp_path, world_size=2, comm=True)))
    mm = found.unique[(found.unique["op"] == "aten::mm") & (found.unique["phase"] == "decode")]
    assert mm["count"].item() == 8 and mm["count_per_forward"].item() == 2.0 and mm["ranks"].item() == "0 1"
    comm = [launch for launch in found.launches if launch.class_ == "comm"]
    assert {launch.coll for launch in comm} == {"allreduce"} and {launch.stream for launch in comm} == {28}
    assert not found.problems


def test_profiler_steps_stand_in_for_forwards_and_a_trace_without_marks_counts_as_a_whole(tmp_path):
    writer = TraceWriter()
    for number in (4, 5):
        writer.step(number, number * 1000, 500)
        writer.gemm(64, 64, 64, number * 1000 + 100, 10)
    found = catalogue_of(writer.write(tmp_path / "t.json"))
    assert found.signatures.forwards == {"step": 2} and found.unique["count_per_forward"].item() == 1.0
    bare = TraceWriter()
    bare.gemm(64, 64, 64, 100, 10)
    found = catalogue_of(bare.write(tmp_path / "bare.json"))
    assert found.signatures.forwards == {} and found.unique["count_per_forward"].item() == 1.0


def test_a_trace_with_neither_kernels_nor_ops_is_refused(tmp_path):
    with pytest.raises(BadDataError, match="neither kernels nor ops"):
        catalogue_of(TraceWriter().write(tmp_path / "t.json"))


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5000), st.integers(0, 90)), min_size=1, max_size=40)
)
def test_counts_and_times_always_add_up(tmp_path_factory, kernels):
    writer = TraceWriter()
    ops = [writer.op(name, 10 * at, 5) for at, name in enumerate(("aten::mm", "aten::add", "aten::cat"))]
    for op, ts, dur in kernels:
        writer.kernel(f"k{dur % 3}", 100 + ts, dur, op=[0, *ops][op])
    found = catalogue_of(writer.write(tmp_path_factory.mktemp("any") / "t.json"))
    assert found.unique["count"].sum() == len(kernels)
    assert found.unique["dur_sum_us"].sum() == pytest.approx(sum(dur for _, _, dur in kernels))
    assert sorted(line for one in found.signatures.signatures for line in one.launches) == list(
        range(len(kernels))
    )


@pytest.mark.data
@pytest.mark.parametrize("name", RECORDINGS)
def test_on_real_recordings_counts_are_all_launches_and_times_all_kernel_time(shared_data, name):
    path = shared_data / f"{name}.json.gz"
    kernels = read_kineto(path).ops
    found = catalogue_of(path)
    assert found.unique["count"].sum() == len(kernels) == len(found.launches)
    assert found.unique["dur_sum_us"].sum() == pytest.approx(kernels.dur_ns.sum() / 1000)


@pytest.mark.data
def test_bloom_on_an_h200_launches_two_layer_norms_per_layer_and_two_more(shared_data):
    found = catalogue_of(shared_data / "kernels_h200" / "bloom560m_generate.json.gz")
    norms = found.unique[found.unique["op"] == "aten::native_layer_norm"]
    assert norms["count"].sum() == 4 * (2 * 24 + 2), "four forwards of 24 layers"
    assert all(launch.op_id >= 0 for launch in found.launches)
    assert (found.signatures.gpu, found.signatures.num_sms) == ("NVIDIA H200", 132)


@pytest.mark.data
def test_geometry_of_rocm_kernels_is_known_if_their_launch_was_recorded(shared_data):
    found = catalogue_of(shared_data / "rocm" / "mi300_resnet_ddp_rank0of8.json.gz")
    kernels = [launch for launch in found.launches if launch.kind == "kernel"]
    known = [launch for launch in kernels if launch.grid[0] > 0]
    assert len(known) > 0.5 * len(kernels)
    assert all(launch.block[0] > 0 and launch.smem_bytes >= 0 for launch in known)
