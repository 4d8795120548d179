"""rocpd: what the file's own SQL says, row by row, and what its views would lose."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from lab.recordings.capture import MEMCPY, PUSH_POP, START_END
from lab.recordings.integrity.words import idle_bound
from lab.recordings.load import load_capture
from tests.recordings.rocpdgen import GUIDS, Process, two, write

REAL = "captures/rocpd_ck_batched_gemm_mi300x.db.gz"


@pytest.fixture
def real(unpacked):
    return unpacked(REAL)


def test_the_real_file_has_the_counts_and_times_of_its_own_view(real):
    capture = load_capture(real)
    ops = capture.ops
    with closing(sqlite3.connect(real)) as own:
        rows = own.execute(
            "SELECT start, end, name, agent_type_index, stream_id, stack_id, grid_x / workgroup_x, "
            "grid_y / workgroup_y, workgroup_x, vgpr_count + accum_vgpr_count, lds_size "
            "FROM kernels ORDER BY id"
        ).fetchall()
    read = zip(
        ops.start_ns.tolist(),
        ops.end_ns.tolist(),
        capture.text(ops.name_id).tolist(),
        ops.device.tolist(),
        ops.stream.tolist(),
        ops.corr.tolist(),
        ops.grid_x.tolist(),
        ops.grid_y.tolist(),
        ops.block_x.tolist(),
        ops.regs.tolist(),
        (ops.static_smem_bytes + ops.dynamic_smem_bytes).tolist(),
        strict=True,
    )
    assert len(rows) == 151 and list(read) == rows


def test_the_real_file_lacks_nothing_but_copies_which_were_not_traced(real):
    capture = load_capture(real)
    assert [(one.rule, one.n, one.unknown) for one in capture.lacks] == [("T", 3, True)]
    assert capture.lacks[0].untraced and capture.verdict == "complete"
    assert idle_bound(capture.lacks) == "at most "  # a copy that was not traced reads as idle time


@pytest.mark.parametrize("suffix", [None, "_00000000_0000_0000_0000_000000000000", ""])
def test_two_processes_with_one_pid_and_the_same_ids_are_kept_apart(tmp_path, suffix):
    capture = load_capture(write(tmp_path / "a.db", *two(), suffix=suffix))
    assert [one.pid for one in capture.processes] == [28, 28]
    assert len(capture.ops) == 8 and len(capture.api) == 8
    names = capture.text(capture.ops.name_id)
    assert set(zip(capture.ops.process.tolist(), names.tolist(), strict=True)) == {
        (0, "first"),
        (1, "second"),
    }
    assert capture.ops.corr.tolist() == [1, 2, 3, 4] * 2
    assert capture.verdict == "complete"


def test_grids_count_blocks_devices_count_gpus_and_streams_are_not_queues(tmp_path):
    process = Process(GUIDS[0], 5)
    process.launch("k", (0, 5), (10, 20), 1, agent_id=3, stream_id=42, queue_id=9)
    ops = load_capture(write(tmp_path / "a.db", process)).ops
    assert (ops.grid_x[0], ops.grid_y[0], ops.grid_z[0]) == (4, 4, 1)
    assert (ops.block_x[0], ops.block_y[0]) == (256, 2)
    assert (ops.device[0], ops.stream[0], ops.regs[0]) == (1, 42, 48)
    assert (ops.static_smem_bytes[0], ops.dynamic_smem_bytes[0]) == (1024, 4096)


def test_rows_that_the_files_views_would_drop_are_kept_and_named(tmp_path):
    process, _ = two()
    process.rows["kernel_dispatch"][0]["event_id"] = None
    process.rows["kernel_dispatch"][1]["kernel_id"] = 999
    process.rows["kernel_dispatch"][2]["agent_id"] = 999
    capture = load_capture(write(tmp_path / "a.db", process))
    assert len(capture.ops) == 4
    assert capture.ops.corr.tolist() == [-1, 2, 3, 4] and capture.ops.device.tolist() == [0, 0, -1, 0]
    assert capture.text(capture.ops.name_id)[1] == "kernel 999 (no symbol recorded)"
    assert sum("without" in one for one in capture.problems) == 2


def test_copies_carry_their_bytes_kind_and_the_gpu_they_reached(tmp_path):
    process = Process(GUIDS[0], 5)
    for index, (kind, target, origin) in enumerate(
        [("HOST_TO_DEVICE", 3, 0), ("DEVICE_TO_HOST", 0, 2), ("DEVICE_TO_DEVICE", 3, 2)]
    ):
        process.call("hipMemcpy", (10 * index, 10 * index + 5), index + 1)
        process.copy(kind, (100 * index, 100 * index + 7), 64 + index, index + 1, target, origin)
    capture = load_capture(write(tmp_path / "a.db", process))
    ops = capture.ops
    assert ops.kind.tolist() == [MEMCPY] * 3 and ops.bytes.tolist() == [64, 65, 66]
    assert ops.copy_kind.tolist() == [1, 2, 8] and ops.device.tolist() == [1, 0, 1]
    assert (ops.end_ns - ops.start_ns).tolist() == [7, 7, 7] and ops.stream.tolist() == [3, 3, 3]
    assert ops.corr.tolist() == [1, 2, 3] and capture.verdict == "complete"


def test_markers_are_ranges_named_by_their_text_and_calls_are_not(tmp_path):
    process = Process(GUIDS[0], 5)
    process.mark("forward, seq = 12", (0, 90), 1)
    process.mark("epoch", (0, 95), 2, name="roctxProcessRangeA")
    process.mark("instant", (30, 30), 3)
    process.launch("k", (10, 20), (40, 50), 4)
    process.call("roctxProfilerPause", (96, 97), 5, category="MARKER_CONTROL_API")
    process.call("ncclAllReduce", (60, 70), 6, category="RCCL_API")
    capture = load_capture(write(tmp_path / "a.db", process))
    ranges = capture.ranges
    named = dict(zip(capture.text(ranges.name_id).tolist(), range(len(ranges)), strict=True))
    assert set(named) == {"forward", "epoch", "instant"}
    assert ranges.kind[named["forward"]] == PUSH_POP and ranges.kind[named["epoch"]] == START_END
    assert ranges.seq[named["forward"]] == 12 and ranges.tid[named["forward"]] == 1005
    assert ranges.start_ns[named["instant"]] == ranges.end_ns[named["instant"]] == 30
    assert sorted(capture.text(capture.api.name_id)) == [
        "hipLaunchKernel",
        "ncclAllReduce",
        "roctxProfilerPause",
    ]


def test_a_call_of_no_duration_is_a_call_so_its_kernel_has_a_launch(tmp_path):
    process = Process(GUIDS[0], 5)
    process.kernel("k", (40, 50), 4)
    track = process.add("track", pid=5, tid=5, name_id=process.string("HIP_RUNTIME_API_EXT"))
    process.add("sample", track_id=track, timestamp=30, event_id=process.event("HIP_RUNTIME_API_EXT", 4))
    capture = load_capture(write(tmp_path / "a.db", process))
    assert capture.api.corr.tolist() == [4] and capture.api.tid.tolist() == [1005]
    assert len(capture.ranges) == 0 and capture.verdict == "complete"


def test_dispatch_ids_prove_what_is_missing_in_front_and_between(tmp_path):
    process = Process(GUIDS[0], 5)
    for index, number in enumerate([4, 5, 7, 10]):
        process.launch(
            "k", (20 * index, 20 * index + 5), (20 * index + 6, 20 * index + 9), index + 1, dispatch_id=number
        )
    lacks = load_capture(write(tmp_path / "a.db", process)).lacks
    assert [(one.rule, one.place, one.n, one.of, one.share) for one in lacks] == [
        ("D", "head", 3, 10, 0.3),
        ("D", "hole", 3, 10, 0.3),
    ]
    assert "6, 8 to 9" in lacks[1].text


def test_dispatch_ids_are_counted_per_process(tmp_path):
    one, other = two()
    del other.rows["kernel_dispatch"][1:3]
    lacks = load_capture(write(tmp_path / "a.db", one, other)).lacks
    assert [(lack.process, lack.place, lack.n) for lack in lacks if lack.rule == "D"] == [(1, "hole", 2)]


def test_without_calls_the_end_is_unknown_and_what_is_here_proven(tmp_path):
    process = Process(GUIDS[0], 5)
    for index in range(3):
        process.kernel("k", (10 * index, 10 * index + 5), index + 1)
    lacks = [one for one in load_capture(write(tmp_path / "a.db", process)).lacks if one.rule == "D"]
    assert [(one.place, one.n, one.unknown) for one in lacks] == [("tail", 0, True)]


def test_passes_of_a_counter_replay_share_an_id_and_are_no_gap(tmp_path):
    process = Process(GUIDS[0], 5)
    for index, number in enumerate([1, 1, 2]):
        process.launch(
            "k", (10 * index, 10 * index + 1), (10 * index + 2, 10 * index + 5), index + 1, dispatch_id=number
        )
    capture = load_capture(write(tmp_path / "a.db", process))
    assert not capture.lacks
    assert any("every pass" in one for one in capture.problems)


def test_kernels_that_the_profiler_was_not_told_to_trace_are_named_so(tmp_path):
    asked = {"ROCPROF_HIP_RUNTIME_API_TRACE": "1", "ROCPROF_KERNEL_TRACE": "0"}
    process = Process(GUIDS[0], 5, environment=asked)
    process.call("hipLaunchKernel", (0, 5), 1)
    lacks = load_capture(write(tmp_path / "a.db", process)).lacks
    assert ["kernels were not traced" in one.text for one in lacks if one.rule == "T"] == [True]


def test_graphs_keep_their_execution_and_node(tmp_path):
    process = Process(GUIDS[0], 5)
    process.call("hipGraphLaunch", (0, 5), 1)
    process.kernel("a", (10, 20), 1, graph_exec_id=9, graph_node_id=3)
    process.kernel("b", (20, 30), 1, graph_exec_id=9, graph_node_id=4)
    process.launch("c", (6, 7), (40, 50), 2, graph_exec_id=0, graph_node_id=0)
    ops = load_capture(write(tmp_path / "a.db", process)).ops
    assert ops.graph.tolist() == [9, 9, -1] and ops.graph_node.tolist() == [3, 4, -1]


@pytest.mark.parametrize(("counted", "missing"), [(2, 0), (5, 6)])
def test_a_replay_with_fewer_kernels_than_its_launch_counted_is_short(tmp_path, counted, missing):
    process = Process(GUIDS[0], 5)
    for index in range(2):
        at = 100 * index
        process.call("hipGraphLaunch", (at, at + 5), index + 1)
        process.add("graph_launch", pid=5, start=at, graph_exec_id=9, kernel_dispatch_count=counted)
        process.kernel("a", (at + 10, at + 20), index + 1, graph_exec_id=9, graph_node_id=3)
        process.kernel("b", (at + 20, at + 30), index + 1, graph_exec_id=9, graph_node_id=4)
    lacks = load_capture(write(tmp_path / "a.db", process)).lacks
    found = [(one.place, one.n, one.of, one.share) for one in lacks if one.rule == "R" and not one.unknown]
    assert found == ([("hole", missing, 2 * counted, missing / (2 * counted))] if missing else [])


def test_the_rank_is_taken_from_the_environment_and_no_secret_is(tmp_path):
    capture = load_capture(write(tmp_path / "a.db", Process(GUIDS[0], 5, environment={"RANK": "3"})))
    assert capture.processes[0].rank == 3
    assert "secret" not in repr(capture).lower()
    assert "secret" not in " ".join([*capture.strings, *capture.info.values(), *capture.problems])


def test_machines_with_clocks_of_their_own_are_named(tmp_path):
    one, _ = two()
    other = Process(GUIDS[1], 28, node=8)
    capture = load_capture(write(tmp_path / "a.db", one, other))
    assert any("2 machines" in text for text in capture.problems)
