"""XPlane files: streams, calls, steps and HLO operations as planted, and what the profiler dropped."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from click.testing import CliRunner

from lab.cli.main import cli
from lab.errors import BadDataError
from lab.recordings.capture import GRAPH, KERNEL, MEMCPY, MEMSET, OP, PUSH_POP
from lab.recordings.load import load_capture
from lab.recordings.processes import process_captures
from lab.recordings.views import link_ops
from tests.recordings.xplane.made import Plane, space, training, write


def test_gpu_rows_stand_as_planted_with_their_sizes(tmp_path):
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(gzip.compress(space(*training())))
    capture = load_capture(path)
    ops = capture.ops
    assert (capture.collector, capture.verdict, capture.problems) == ("xplane", "complete", [])
    assert capture.text(ops.name_id).tolist()[:4] == ["MemcpyH2D", "fusion_kernel", "gemm_kernel", "Memset"]
    assert ops.kind.tolist() == [MEMCPY, KERNEL, KERNEL, MEMSET] * 3
    assert ops.start_ns.tolist()[:5] == [13_000, 23_000, 33_000, 43_000, 113_000]
    assert (ops.end_ns - ops.start_ns).tolist()[:4] == [5_000, 7_000, 9_000, 1_000]
    assert set(ops.device.tolist()) == {0} and set(ops.stream.tolist()) == {14}
    assert ops.corr.tolist()[:5] == [1, 2, 3, 4, 11] and ops.context.tolist()[:2] == [-1, 1]
    assert ops.bytes.tolist()[:4] == [4096, -1, -1, 128]
    sizes = [getattr(ops, name)[1] for name in ("grid_x", "grid_y", "grid_z", "block_x", "regs")]
    assert sizes == [8, 2, 1, 256, 40]
    assert (ops.static_smem_bytes[1], ops.dynamic_smem_bytes[1]) == (64, 512)
    assert (ops.copy_kind[0], ops.src_kind[0], ops.dst_kind[0]) == (1, 0, 2)
    assert [(one.name, one.num_sms) for one in capture.devices] == [("NVIDIA H200", 132)]
    assert (capture.processes[0].pid, capture.processes[0].host) == (77, "node7")


def test_steps_ranges_and_operations_stand_on_the_thread_of_their_calls(tmp_path):
    capture = load_capture(write(tmp_path / "a", *training()))
    ranges = capture.ranges
    names = capture.text(ranges.name_id).tolist()
    assert names[:4] == ["train step 0", "forward", "train step 1", "forward"]
    assert names[6:8] == ["jit_step/fusion.3", "jit_step/dot.1"] and len(names) == 12
    assert ranges.kind.tolist() == [PUSH_POP] * 6 + [OP] * 6 and set(ranges.tid.tolist()) == {21}
    assert not any(name.startswith("$") for name in names), "frames of Python's stack are no ranges"
    assert capture.text(capture.api.name_id).tolist()[1:3] == ["cuLaunchKernel"] * 2
    (trace,) = process_captures(capture)
    owners = link_ops(trace)
    texts = np.where(owners < 0, "", trace.text(trace.operators.name_id)[owners])
    assert texts.tolist() == ["", "jit_step/fusion.3", "jit_step/dot.1", ""] * 3


def test_an_operation_without_its_call_still_owns_its_rows_and_the_verdict_is_unknown(tmp_path):
    gpu, _ = training()
    capture = load_capture(write(tmp_path / "a", gpu))
    (trace,) = process_captures(capture)
    assert trace.text(trace.operators.name_id[link_ops(trace)]).tolist()[1:3] == [
        "jit_step/fusion.3",
        "jit_step/dot.1",
    ]
    assert capture.verdict == "unknown" and {lack.rule for lack in capture.lacks} == {"G", "H"}


def test_rows_of_one_graph_launch_keep_their_own_operations(tmp_path):
    host = Plane("/host:CUPTI").line(21, "python")
    host.event("cuGraphLaunch (CudaGraph:5)", 100, 50, device_id=0, correlation_id=9)
    gpu = Plane("/device:GPU:0").line(7, "Stream #7(Compute)")
    for number, name in enumerate(("dot.1", "add.2")):
        stats = {"hlo_op": f"@{name}", "cuda_graph_id": 5, "cuda_graph_node_id": 40 + number}
        gpu.event("k", 200 + 100 * number, 50, correlation_id=9, **stats)
    gpu.event("CudaGraph", 500, 90, correlation_id=9, cuda_graph_id=5, cuda_graph_exec_id=5)
    capture = load_capture(write(tmp_path / "a", gpu, host))
    assert capture.ops.kind.tolist() == [KERNEL, KERNEL, GRAPH]
    assert capture.ops.graph_node.tolist() == [40, 41, -1] and set(capture.ops.graph.tolist()) == {5}
    assert capture.text(capture.api.name_id).tolist() == ["cuGraphLaunch"]
    named = dict(zip(capture.ranges.external_id.tolist(), capture.text(capture.ranges.name_id), strict=True))
    assert [named.get(number) for number in capture.ops.external_id.tolist()] == ["dot.1", "add.2", None]


def test_rows_outside_of_operations_belong_to_their_module_or_to_the_framework(tmp_path):
    gpu = Plane("/device:GPU:0").line(7, "Stream #7")
    gpu.event("a", 0, 5, hlo_module="@jit_f", tf_op="@XlaModule:").event("b", 10, 5, tf_op="@dense/MatMul")
    gpu.event("c", 20, 5)
    capture = load_capture(write(tmp_path / "a", gpu))
    named = dict(zip(capture.ranges.external_id.tolist(), capture.text(capture.ranges.name_id), strict=True))
    assert [named.get(key) for key in capture.ops.external_id.tolist()] == ["jit_f", "dense/MatMul", None]


def test_lines_that_count_from_the_profile_s_start_become_absolute(tmp_path):
    clock = Plane("Task Environment", profile_start_time=1_700_000_000_000_000_000)
    capture = load_capture(write(tmp_path / "a", *training(1), clock))
    assert capture.ops.start_ns[0] == capture.api.start_ns[0] + 3_000 == 1_700_000_000_000_013_000
    gpu = Plane("/device:GPU:0").line(7, "Stream #7", 1_700_000_000_000_000_500).event("k", 1, 2)
    assert load_capture(write(tmp_path / "b", gpu, clock)).ops.start_ns.tolist() == [
        1_700_000_000_000_000_501
    ]


@pytest.mark.parametrize(
    ("words", "findings"),
    [
        (
            "Detected GPU events dropped on h: Profiler has collected 9 driver events and 8 device events. "
            "5 events dropped because total device(activity) events reaches max; "
            "7 events dropped because total driver(callback) events reaches max.",
            [("gpu", 5, False), ("host", 7, False)],
        ),
        ("CUPTI could not be loaded", [("gpu", 0, True)]),
    ],
)
@pytest.mark.parametrize("role", ["errors", "warnings"])
def test_what_the_profiler_says_it_dropped_is_lost(tmp_path, words, findings, role):
    capture = load_capture(write(tmp_path / "a", *training(), **{role: (words,)}))
    assert [(lack.axis, lack.n, lack.unknown) for lack in capture.lacks] == findings
    assert capture.verdict == ("unknown" if findings[0][2] else "lossy")


def test_an_amd_gpu_has_blocks_and_group_memory_and_copies_that_xla_leaves_out(tmp_path):
    host = Plane("/host:CPU").line(21, "python")
    for at, call in enumerate(("hipMemcpyAsync", "hipLaunchKernel", "hipMemcpyAsync", "hipMemcpyAsync")):
        host.event(call, 10 * at, 5, device_id=0, correlation_id=at)
    gpu = Plane("/device:GPU:0", device_vendor="AMD").line(3, "Stream #3")
    details = "@ grid:16,2,1 block:256,1,1 private_mem:0 group_mem:1024 occ_pct:0"
    gpu.event("Cijk_Ailk", 20, 50, correlation_id=1, kernel_details=details)
    capture = load_capture(write(tmp_path / "a", gpu, host))
    ops = capture.ops
    assert (ops.grid_x[0], ops.block_x[0], ops.dynamic_smem_bytes[0], ops.stream[0]) == (16, 256, 1024, 3)
    assert [(lack.rule, lack.untraced) for lack in capture.lacks] == [("T", True)]
    assert (capture.verdict, capture.info["vendor"]) == ("complete", "amd")


def test_rows_that_lab_does_not_read_are_named_and_never_complete(tmp_path):
    tpu = Plane("/device:TPU:0").line(1, "XLA Ops").event("fusion.1", 0, 10).summed("dot", 4, 40)
    capture = load_capture(write(tmp_path / "a", *training(), tpu))
    assert [(lack.n, lack.unknown) for lack in capture.lacks] == [(2, True)] and capture.verdict == "unknown"
    gpu = Plane("/device:GPU:0").line(1, "XLA Modules").event("jit_step", 0, 10)
    capture = load_capture(write(tmp_path / "b", gpu))
    assert len(capture.ops) == 0 and capture.verdict == "unknown"
    assert capture.problems == ["1 row of /device:GPU:0 outside its streams left out (XLA Modules)"]


def test_bookkeeping_of_memory_is_no_work_of_the_gpu(tmp_path):
    gpu = Plane("/device:GPU:0").line(7, "Stream #7")
    gpu.event("MemoryAlloc", 0, 10, memalloc_details="@kind:device num_bytes:64").event("k", 20, 5)
    capture = load_capture(write(tmp_path / "a", gpu))
    assert capture.text(capture.ops.name_id).tolist() == ["k"]


def test_operations_that_ran_on_the_cpu_are_operators(tmp_path):
    host = Plane("/host:CPU").line(-5, "tf_XLAEigen").event("add", 0, 10, hlo_op="@add", hlo_module="@jit_f")
    capture = load_capture(write(tmp_path / "a", host))
    assert capture.ranges.kind.tolist() == [OP] and capture.ranges.tid[0] >= 0
    assert capture.text(capture.ranges.name_id).tolist() == ["jit_f/add"]


def test_truncated_and_damaged_files_are_errors_with_the_file(tmp_path):
    data, path = space(*training(1)), tmp_path / "a.xplane.pb"
    for keep in range(30, len(data) - 8, 7):
        path.write_bytes(data[:keep])
        with pytest.raises(BadDataError) as caught:
            load_capture(path)
        assert caught.value.location == str(path)
    for offset in range(0, len(data), 5):
        path.write_bytes(data[:offset] + b"\xff" + data[offset + 1 :])
        try:
            load_capture(path)
        except BadDataError:
            pass


def test_commands_print_the_planted_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = str(write(tmp_path / "a.xplane.pb", *training()))

    def printed(*command):
        result = CliRunner().invoke(cli, [*command, path])
        assert result.exit_code == 0, result.output
        return result.stdout

    (row,) = json.loads(printed("inspect", "--json"))
    assert (row["verdict"], row["format"]) == ("complete", "xplane")
    assert (row["gpu_ops"], row["gpu_time_ns"]) == (12, 66_000)
    summary = json.loads(printed("nsys", "summary", "--json"))
    assert summary["steps"] == ["train step 0", "train step 1", "train step 2"]
    assert [(phase["path"], phase["kernel_ms"], phase["busy_ms"]) for phase in summary["phases"]] == [
        ([], 0.016, 0.022),
        (["forward"], 0.016, 0.022),
    ]
    assert "jit_step/dot.1" in printed("kernels", "unique")
    assert "change of the unit's span" in printed("diff", path)


def test_jax_s_json_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / "vm.trace.json.gz"
    events = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}}]
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    with pytest.raises(BadDataError, match="extract of its XPlane file") as caught:
        load_capture(path)
    assert ".xplane.pb" in caught.value.fix


def test_hosts_of_one_profile_are_one_recording_and_their_extracts_are_passed_over(tmp_path):
    for host in ("h0", "h1"):
        write(tmp_path / f"{host}.xplane.pb", *training(1))
        (tmp_path / f"{host}.trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents":[{"/device:GPU:0"'))
    capture = load_capture(tmp_path)
    assert capture.ops.process.tolist() == [0] * 4 + [1] * 4 and len(capture.processes) == 2
    result = CliRunner().invoke(cli, ["inspect", "--json", str(tmp_path)])
    assert result.exit_code == 0
    assert [row["format"] for row in json.loads(result.stdout)] == ["xplane"] * 2
