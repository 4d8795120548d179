"""Counts add up to every launch, times to its kernel time; ranks fold; forwards are those that ran."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.errors import BadDataError
from lab.recordings.kineto import read_kineto
from lab.rooms.kernels.catalogue import files
from lab.rooms.kernels.catalogue.classes import class_of, class_of_op, moves_no_data
from lab.rooms.kernels.catalogue.launches import bucketed, read_catalogue, spread, working_ops
from lab.rooms.kernels.schema import (
    UNIQUE_COLUMNS,
    Launch,
    OpRecord,
    Trail,
    read_lines,
    read_signatures,
    trails,
)
from tests.rooms.kernels.made import generation, profile_folder
from tests.tracegen import TraceWriter

RECORDINGS = (
    "kernels_h200/bloom560m_generate",
    "kernels_h200/cs336_small_training",
    "rocm/mi300_qwen1.5_0.5b",
    "rocm/mi300_resnet_ddp_rank0of8",
)


def catalogue_of(path):
    return read_catalogue([Trail(rank=0, trace=path)])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return catalogue_of(generation(forwards=3).write(tmp_path_factory.mktemp("made") / "trace_rank0.json"))


def test_counts_are_per_forward_of_their_phase_and_of_what_ran(made):
    assert made.signatures.forwards == {"prefill": 1, "decode": 2}
    mm = made.unique[made.unique["op"] == "aten::mm"].set_index("phase")
    assert mm["count"].to_dict() == {"prefill": 2, "decode": 4}
    assert mm["count_per_forward"].tolist() == [2.0, 2.0]


def test_a_signature_holds_kernel_geometry_op_and_arguments(made):
    one = next(one for one in made.signatures.signatures if one.op == "aten::mm" and one.phase == "decode")
    assert (one.grid, one.block, one.smem_bytes, one.regs) == ((8, 1, 1), (256, 1, 1), 512, 90)
    assert (one.class_, one.kernel, [arg.shape for arg in one.args]) == (
        "gemm",
        "nvjet_gemm",
        [[4, 8], [8, 8]],
    )
    assert one.dur_us.sum == 40.0 and one.dur_us.median == 10.0
    assert {made.launches[line].sig_id for line in one.launches} == {one.sig_id}


def test_a_cache_that_grows_is_a_signature_a_step_and_one_bucket(made):
    cats = made.unique[(made.unique["op"] == "aten::cat") & (made.unique["phase"] == "decode")]
    assert cats["bytes"].tolist() == [16, 24] or cats["bytes"].tolist() == [24, 16]
    rows = bucketed(made.unique)
    row = rows[(rows["op"] == "aten::cat") & (rows["phase"] == "decode")]
    assert row["signatures"].item() == 2 and row["count"].item() == 2


def test_launches_know_their_forward_and_owner(made):
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


def test_ranks_that_launched_unequal_numbers_are_named(tmp_path):
    generation(forwards=3, rank=0, world_size=2).write(tmp_path / "trace_rank0.json")
    short = generation(forwards=3, rank=1, world_size=2)
    short.events = [e for e in short.events if not (e["name"] == "nvjet_gemm" and e["ts"] > 3200)]
    short.write(tmp_path / "trace_rank1.json")
    found = read_catalogue(trails(tmp_path))
    assert any("not equally many on all ranks" in text and "0:4 1:2" in text for text in found.problems)


def test_a_launch_without_an_op_is_counted_and_said(tmp_path):
    writer = generation(forwards=1)
    writer.kernel("orphan", 5000, 20)
    found = catalogue_of(writer.write(tmp_path / "t.json"))
    assert found.launches[-1].op_id == -1 and found.launches[-1].name == "orphan"
    assert any("1 of 5 launches" in text and "have no op" in text for text in found.problems)


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


@settings(max_examples=25, deadline=None)
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


def test_percentiles_are_numpys():
    values = np.array([4.0, 1.0, 3.0, 2.0, 10.0])
    found = spread(values)
    assert (found.sum, found.min, found.max, found.median) == (20.0, 1.0, 10.0, 3.0)
    assert found.p95 == pytest.approx(np.percentile(values, 95))


def test_on_a_cpu_ops_that_own_work_stand_in_for_launches():
    names = np.array(
        [
            "aten::linear",
            "aten::t",
            "aten::addmm",
            "aten::copy_",
            "aten::to",
            "aten::_to_copy",
            "aten::copy_",
            "aten::view",
        ],
        dtype=object,
    )
    parent = np.array([-1, 0, 0, 2, -1, 4, 5, -1])
    rows = working_ops(names, parent, np.arange(8))
    assert names[rows].tolist() == ["aten::addmm", "aten::copy_"] and rows.tolist() == [2, 6]


def test_what_only_loops_is_named_by_its_op():
    assert class_of("void at::native::vectorized_elementwise_kernel<4, X>(int)", "aten::where") == "mask"
    assert (
        class_of("void at::native::vectorized_elementwise_kernel<4, X>(int)", "aten::addmm") == "elementwise"
    )
    assert class_of("nvjet_sm90_hsh_64x8", "aten::add") == "gemm"
    assert class_of_op("c10d::allreduce_") == "comm" and class_of_op("aten::mul") == "elementwise"
    assert moves_no_data("aten::unsqueeze_") and not moves_no_data("aten::mul_")


def test_the_files_hold_what_the_catalogue_says(made, tmp_path):
    files.write_unique(made, tmp_path)
    files.write_launches(made, tmp_path)
    tables = tmp_path / "tables"
    unique = pd.read_csv(tables / "unique_kernels.csv")
    assert tuple(unique.columns) == UNIQUE_COLUMNS and unique["count"].sum() == len(made.launches)
    assert len(list(read_lines(tables / "launches.jsonl", Launch))) == len(made.launches)
    assert {op.op_id for op in read_lines(tables / "ops.jsonl", OpRecord)} == {op.op_id for op in made.ops}
    assert read_signatures(tables).signatures == made.signatures.signatures
    seed = [json.loads(line) for line in (tables / "unique_kernels.jsonl").read_text().splitlines()]
    assert sum(one["count"] for one in seed) == len(made.launches)
    assert {"name", "grid", "block", "shared memory"} == set(seed[0]["signature"])
    counts = pd.read_csv(tables / "kernel_counts.csv")
    assert counts.columns.tolist()[:4] == ["device", "category", "kernel_name", "count"]
    assert counts["count"].sum() == len(made.launches)


def test_a_name_with_quotes_and_commas_survives_the_csv(tmp_path):
    writer = TraceWriter()
    name = 'weird "kernel", <a, b>\n'
    writer.kernel(name, 10, 5)
    found = catalogue_of(writer.write(tmp_path / "t.json"))
    files.write_unique(found, tmp_path)
    assert pd.read_csv(tmp_path / "tables" / "unique_kernels.csv")["name"].item() == name


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "launches.jsonl").write_text('{"rank": 0}\n')
    with pytest.raises(BadDataError, match="not a Launch") as caught:
        list(read_lines(tmp_path / "launches.jsonl", Launch))
    assert caught.value.where.endswith("launches.jsonl:1")


@pytest.mark.data
@pytest.mark.parametrize("name", RECORDINGS)
def test_on_real_recordings_counts_are_all_launches_and_times_all_kernel_time(shared_data, name):
    path = shared_data / f"{name}.json.gz"
    kernels = read_kineto(path).kernels
    found = catalogue_of(path)
    assert found.unique["count"].sum() == len(kernels) == len(found.launches)
    assert found.unique["dur_sum_us"].sum() == pytest.approx(kernels.dur_ns.sum() / 1000)


@pytest.mark.data
def test_bloom_on_an_h200_launches_two_layer_norms_a_layer_and_two_more(shared_data):
    found = catalogue_of(shared_data / "kernels_h200" / "bloom560m_generate.json.gz")
    norms = found.unique[found.unique["op"] == "aten::native_layer_norm"]
    assert norms["count"].sum() == 4 * (2 * 24 + 2), "four forwards of 24 layers"
    assert all(launch.op_id >= 0 for launch in found.launches)
    assert (found.signatures.gpu, found.signatures.num_sms) == ("NVIDIA H200", 132)


@pytest.mark.data
def test_geometry_of_rocm_kernels_is_known_where_their_launch_was_recorded(shared_data):
    found = catalogue_of(shared_data / "rocm" / "mi300_resnet_ddp_rank0of8.json.gz")
    kernels = [launch for launch in found.launches if launch.kind == "kernel"]
    known = [launch for launch in kernels if launch.grid[0] > 0]
    assert len(known) > 0.5 * len(kernels)
    assert all(launch.block[0] > 0 and launch.smem_bytes >= 0 for launch in known)
