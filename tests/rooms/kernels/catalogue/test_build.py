"""Counts add up to every launch, times to its kernel time; ranks fold; what is in doubt is reported."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.errors import BadDataError
from lab.recordings.kineto import read_kineto
from lab.rooms.kernels.analyze import frame_of, shares
from lab.rooms.kernels.catalogue import files
from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.catalogue.cli import unique
from lab.rooms.kernels.report.page import _waits
from lab.rooms.kernels.schema import UNIQUE_COLUMNS, Launch, OpRecord, Signatures
from lab.rooms.kernels.trails import Trail, read_json, read_lines, trails
from tests.compare.made import edited, layer, trace
from tests.recordings.graphs.made import Events, capture_into, decoder, replay_into
from tests.rooms.kernels.made import catalogue_of, generation, profile_folder
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


def test_the_files_hold_what_the_catalogue_says(made, tmp_path):
    files.write_unique(made, tmp_path)
    files.write_launches(made, tmp_path)
    tables = tmp_path / "tables"
    unique = pd.read_csv(tables / "unique_kernels.csv")
    assert tuple(unique.columns) == UNIQUE_COLUMNS and unique["count"].sum() == len(made.launches)
    assert len(list(read_lines(tables / "launches.jsonl", Launch))) == len(made.launches)
    assert {op.op_id for op in read_lines(tables / "ops.jsonl", OpRecord)} == {op.op_id for op in made.ops}
    assert read_json(tables / "signatures.json", Signatures).signatures == made.signatures.signatures
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


LOST = (
    "no GPU row was recorded: operators on the CPU stand in for its launches, and their times are the CPU's"
)


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


def without(*categories):
    return lambda events: [one for one in events if one["cat"] not in categories]


@pytest.mark.parametrize(
    ("lost", "board", "code", "said", "time"),
    [
        ((), "GPU", 0, False, "launches, 0.165 ms in all"),
        (("kernel",), "GPU", 5, False, ""),
        (("kernel", "cuda_runtime"), "", 0, False, "launches, 0.036 ms of CPU time in all"),
        (("kernel", "cuda_runtime"), "GPU", 0, True, "launches, 0.036 ms of CPU time in all"),
    ],
    ids=["on a GPU", "rows lost", "on a CPU", "on the CPU beside a GPU"],
)
def test_times_of_operators_are_said_to_be_the_cpus(tmp_path, lost, board, code, said, time):
    path = edited(trace(tmp_path / "a.json", [layer()] * 3), without(*lost))
    if not board:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"deviceProperties": []}))
    done = CliRunner().invoke(unique, [str(path), "-o", str(tmp_path / "out")], standalone_mode=False)
    assert getattr(done.exception, "exit_code", 0) == code
    assert (f"! a.json: {LOST}" in done.output) is said and time in done.output


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
