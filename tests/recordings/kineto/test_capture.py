"""A Kineto trace as a capture."""

from __future__ import annotations

from lab.recordings.capture import KERNEL, MEMCPY, OP, PUSH_POP
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
