""".rpd: the file's own tables to the nanosecond, schema 3 beside schema 2, barriers that are no work."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from lab.errors import BadDataError
from lab.recordings.capture import KERNEL, MEMCPY, MEMSET, OP, PUSH_POP
from lab.recordings.load import format_of, load_capture
from tests.recordings.rpdgen import Rpd

REAL = "captures/matmul_small_schema2.rpd.gz"


@pytest.fixture
def real(unpacked):
    return unpacked(REAL)


def test_the_real_file_has_the_counts_and_times_of_its_own_sql(real):
    capture = load_capture(real)
    ops = capture.ops
    with closing(sqlite3.connect(real)) as own:
        rows = own.execute(
            "SELECT o.start, o.end, o.gpuId - 2, x.api_id, s.string, t.string FROM rocpd_op o "
            "JOIN rocpd_api_ops x ON x.op_id = o.id JOIN rocpd_string s ON s.id = o.description_id "
            "JOIN rocpd_string t ON t.id = o.opType_id ORDER BY o.id"
        ).fetchall()
    names = capture.text(ops.name_id).tolist()
    read = zip(
        ops.start_ns.tolist(), ops.end_ns.tolist(), ops.device.tolist(), ops.corr.tolist(), names, strict=True
    )
    assert list(read) == [(*row[:4], row[4] or row[5]) for row in rows]


def test_devices_are_ordinals_where_as_many_gpus_have_sensors_and_else_it_is_said(real):
    assert set(load_capture(real).ops.device.tolist()) == {0} and not load_capture(real).problems
    with closing(sqlite3.connect(real)) as own, own:
        own.execute(
            "INSERT INTO rocpd_monitor (deviceType, deviceId, monitorType, start, end, value) "
            "VALUES ('gpu', 1, 'sclk', 1, 2, '800')"
        )
    two = load_capture(real)
    assert set(two.ops.device.tolist()) == {2}
    assert [one for one in two.problems if "counts CPUs before GPUs" in one]
    with closing(sqlite3.connect(real)) as own, own:
        own.execute("UPDATE rocpd_monitor SET deviceId = 'x' || deviceId WHERE deviceId = 0")
    assert set(load_capture(real).ops.device.tolist()) == {2}


def test_the_real_file_has_the_golden_numbers(real):
    capture = load_capture(real)
    ops = capture.ops
    dur_ns, names = ops.end_ns - ops.start_ns, capture.text(ops.name_id)
    by_kind = {
        kind: (int((ops.kind == kind).sum()), int(dur_ns[ops.kind == kind].sum())) for kind in range(3)
    }
    assert by_kind == {KERNEL: (29, 26_399_795), MEMCPY: (55, 334_758 + 157_178_063), MEMSET: (1, 5_440)}
    assert (names == "CopyDeviceToHost").sum() == 53 and dur_ns[
        names == "CopyHostToDevice"
    ].sum() == 157_178_063
    assert ops.bytes[0] == 2_000_000_000 and set(ops.copy_kind[ops.kind == MEMCPY].tolist()) == {1, 2}
    assert len(capture.api) == 125 and len(np.unique(capture.api.tid)) == 2
    assert np.isin(ops.corr, capture.api.corr).all() and capture.verdict == "complete"
    # hipExtModuleLaunchKernel was given 1792 work items in groups of 256; hipLaunchKernel is given blocks.
    gemm = np.array([name.startswith("Cijk_") for name in names])
    assert (ops.grid_x[gemm].tolist(), ops.grid_y[gemm].tolist()) == ([7], [782])
    assert capture.schema == "2" and [one.pid for one in capture.processes] == [1_087_077]


@pytest.fixture
def made():
    rpd = Rpd(schema=3)
    forward = json.dumps({"seq": 4, "op_id": 9, "sizes": [[2, 3], [3, 4]]})
    rpd.call("aten::mm", (0, 100), domain="torch", category="function", args=forward)
    rpd.call("UserMarker", (0, 400), domain="roctx", category="range", args="step 1")
    rpd.call("my_region", (0, 390), domain="torch", category="user_scope")
    rpd.call("note", (50, 50), domain="miopen", category="driver", args="--command /home/somebody")
    rpd.kernel("gemm", (10, 20), (30, 60))
    rpd.kernel("tensile", (20, 30), (60, 90), api="hipExtModuleLaunchKernel")
    rpd.copy("Memcpy", (100, 110), (120, 150), 4096)
    rpd.op("Barrier", (150, 900), rpd.call("hipStreamWaitEvent", (110, 120)))
    rpd.op("FillBuffer", (910, 920), rpd.call("hipMemsetAsync", (130, 140)))
    return rpd


def test_schema_3_is_read_by_its_domains_and_not_as_rocpd(tmp_path, made):
    path = made.write(tmp_path / "a.db")
    assert format_of(path).name == "rpd"
    capture = load_capture(path)
    ranges = capture.ranges
    texts = capture.text(ranges.text_id).tolist()
    assert dict(zip(texts, ranges.kind.tolist(), strict=True)) == {
        "aten::mm": OP,
        "step 1": PUSH_POP,
        "my_region": PUSH_POP,
        "note": PUSH_POP,
    }
    op = texts.index("aten::mm")
    assert ranges.seq[op] == 4 and capture.strings[ranges.dims_id[op]] == "[[2,3],[3,4]]"
    calls = sorted(set(capture.text(capture.api.name_id)))
    assert "hipLaunchKernel" in calls and "aten::mm" not in calls and "UserMarker" not in calls
    assert not any("somebody" in text for text in capture.strings)
    assert capture.verdict == "complete"


def test_a_barrier_waits_and_is_no_work_of_the_gpu(tmp_path, made):
    capture = load_capture(made.write(tmp_path / "a.rpd"))
    assert capture.text(capture.ops.name_id).tolist() == ["gemm", "tensile", "Memcpy", "FillBuffer"]
    assert (capture.ops.end_ns - capture.ops.start_ns).sum() == 30 + 30 + 30 + 10
    assert (capture.sync.start_ns.tolist(), capture.sync.end_ns.tolist()) == ([150], [900])


def test_grids_count_blocks_whatever_the_launch_was_given(tmp_path, made):
    ops = load_capture(made.write(tmp_path / "a.rpd")).ops
    assert ops.grid_x.tolist() == [1792, 7, -1, -1] and ops.block_x.tolist() == [256, 256, -1, -1]
    assert ops.stream.tolist() == [31, 31, 0, -1] and ops.bytes.tolist() == [-1, -1, 4096, -1]


def test_a_graph_launch_gives_its_kernels_no_geometry(tmp_path):
    rpd = Rpd(schema=3)
    call = rpd.call("hipGraphLaunch", (0, 5))
    rpd.rows["rocpd_kernelapi"].append({"api_ptr_id": call, "stream": "0x2", "gridX": 0, "workgroupX": 0})
    for index in range(3):
        rpd.op("KernelExecution", (10 * index + 10, 10 * index + 19), call, f"node {index}")
    ops = load_capture(rpd.write(tmp_path / "a.rpd")).ops
    assert ops.corr.tolist() == [call] * 3 and ops.stream.tolist() == [2] * 3
    assert ops.grid_x.tolist() == ops.block_x.tolist() == [-1] * 3


def test_the_process_of_an_operation_is_that_of_its_call(tmp_path):
    rpd = Rpd()
    rpd.kernel("one", (0, 5), (10, 20), pid=5)
    rpd.kernel("two", (0, 5), (10, 20), pid=8)
    rpd.op("KernelExecution", (30, 40), None, "orphan")
    capture = load_capture(rpd.write(tmp_path / "a.rpd"))
    pids = [capture.processes[one].pid for one in capture.ops.process]
    assert list(zip(capture.text(capture.ops.name_id), pids, strict=True)) == [
        ("one", 5),
        ("two", 8),
        ("orphan", None),
    ]


def test_files_of_several_machines_split_into_machine_process_and_gpu(tmp_path):
    rpd = Rpd(schema=3)
    call = rpd.call("hipLaunchKernel", (0, 5), pid=20_000_123)
    rpd.op("KernelExecution", (10, 20), call, "k", gpu=2003)
    capture = load_capture(rpd.write(tmp_path / "a.rpd"))
    assert (capture.processes[0].pid, capture.processes[0].host, capture.ops.device[0]) == (123, "node 2", 3)


def test_ends_before_starts_count_as_nothing_and_are_named(tmp_path):
    rpd = Rpd()
    rpd.kernel("k", (0, 5), (100, 20))
    capture = load_capture(rpd.write(tmp_path / "a.rpd"))
    assert capture.ops.end_ns.tolist() == [100] and any("0 ns long" in one for one in capture.problems)


def test_types_that_lab_does_not_know_are_named(tmp_path):
    rpd = Rpd()
    rpd.op("Teleport", (0, 5), rpd.call("hipX", (0, 1)), "k")
    capture = load_capture(rpd.write(tmp_path / "a.rpd"))
    assert capture.ops.kind.tolist() == [KERNEL] and any("'Teleport'" in one for one in capture.problems)


@pytest.mark.parametrize(
    ("column", "value"), [("start", "'x'"), ("end", "1e30"), ("start", "-9"), ("opType_id", "2.5")]
)
def test_wrong_types_are_errors_with_the_file(tmp_path, made, column, value):
    path = made.write(tmp_path / "a.rpd")
    with closing(sqlite3.connect(path)) as own:
        own.execute(f'UPDATE rocpd_op SET "{column}" = {value}')
        own.commit()
    with pytest.raises(BadDataError) as caught:
        load_capture(path)
    assert caught.value.location == str(path)


@pytest.mark.parametrize("stream", ["", "zz", "0x" + "f" * 16, "-0x5", "9" * 400])
def test_a_stream_that_is_no_pointer_is_not_recorded(tmp_path, stream):
    rpd = Rpd()
    rpd.kernel("k", (0, 5), (10, 20))
    rpd.rows["rocpd_kernelapi"][0]["stream"] = stream
    assert load_capture(rpd.write(tmp_path / "a.rpd")).ops.stream.tolist() == [-1]
