"""A Kineto trace as a capture."""

from __future__ import annotations

from lab.recordings.capture import KERNEL, MEMCPY, MEMSET, OP, PUSH_POP
from lab.recordings.load import load_capture
from tests.tracegen import TraceWriter


def test_a_kineto_trace_fills_the_same_tables(tmp_path):
    trace = TraceWriter()
    here = {"pid": 5, "tid": 6}
    trace.event("user_annotation", "forward", 0, 100, **here)
    trace.event("cpu_op", "aten::mm", 10, 20, args={"Sequence number": 4}, **here)
    trace.event("cuda_runtime", "cudaLaunchKernel", 12, 3, args={"correlation": 9}, **here)
    trace.event("kernel", "gemm", 50, 8, args={"correlation": 9, "device": 0, "stream": 7}, pid=0, tid=7)
    name = "Memcpy HtoD (Pageable -> Device)"
    trace.event("gpu_memcpy", name, 60, 4, args={"correlation": 10, "device": 0, "bytes": 64}, pid=0, tid=7)
    path = trace.write(tmp_path / "trace.json.gz")
    capture = load_capture(path)
    assert capture.collector == "kineto"
    assert capture.ops.pid.tolist() == [5, 5]
    assert (capture.ops.end_ns - capture.ops.start_ns).tolist() == [8000, 4000]
    assert capture.ops.copy_kind.tolist() == [-1, 1]
    assert capture.ops.kind.tolist() == [KERNEL, MEMCPY]
    assert capture.ranges.kind.tolist() == [PUSH_POP, OP]
    assert capture.ranges.seq.tolist() == [-1, 4]


def test_the_monitor_s_rows_keep_their_graph_nodes_copy_kinds_and_own_stream(tmp_path):
    trace = TraceWriter()
    node = {"graph id": 3, "graph node id": 3 << 32 | 5, "correlation": 9, "device": 0}
    trace.event("kernel", "gemm", 50, 8, args={**node, "stream": 70, "original_stream": 7}, pid=0, tid=70)
    kinds = {"copy kind": "HtoD", "src kind": "Pageable", "dst kind": "Device"}
    trace.event("gpu_memcpy", "Memcpy", 60, 4, args={"stream": 8, "bytes": 64, **kinds}, pid=0, tid=8)
    trace.event("gpu_memcpy", "Memcpy", 66, 4, args={"stream": 8, "copy kind": "DtoH"}, pid=0, tid=8)
    trace.event("gpu_memset", "Memset", 70, 1, args={"stream": 8, "graph id": 0}, pid=0, tid=8)
    trace.event("graph_event_node", "EventRecord", 71, 1, args={"stream": 8}, pid=0, tid=8)
    capture = load_capture(trace.write(tmp_path / "monitor.json"))
    ops = capture.ops
    assert ops.kind.tolist() == [KERNEL, MEMCPY, MEMCPY, MEMSET]
    assert ops.stream.tolist() == [7, 8, 8, 8]
    assert ops.graph.tolist() == [3, -1, -1, -1]
    assert ops.graph_node.tolist() == [3 << 32 | 5, -1, -1, -1]
    assert ops.copy_kind.tolist() == [-1, 1, 2, -1]
    assert [ops.src_kind.tolist()[1], ops.dst_kind.tolist()[1], ops.src_kind.tolist()[2]] == [0, 2, -1]
    assert capture.text(ops.name_id)[1] == "Memcpy HtoD (Pageable -> Device)"
