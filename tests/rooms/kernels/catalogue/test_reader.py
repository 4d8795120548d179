"""What only the kernels room needs of a trace: geometry wherever a vendor or a torch writes it."""

from __future__ import annotations

import json

import pytest

from lab.recordings.kineto import read_kineto
from lab.recordings.tables import KERNEL, MEMCPY, MEMSET
from tests.tracegen import TraceWriter


def test_geometry_of_a_rocm_kernel_comes_from_the_call_that_launched_it(tmp_path):
    writer = TraceWriter(vendor="amd")
    launch = {"correlation": 7, "grid": [3, 2, 1], "block": [64, 1, 1], "shared memory": 256}
    writer.event("cuda_runtime", "hipLaunchKernel", 0, 1, args=launch)
    writer.event("cuda_runtime", "hipMemcpyAsync", 2, 1, args={"correlation": 8, "bytes": "12"})
    for name, correlation in (("told", 7), ("untold", 99)):
        args = {"device": 0, "stream": 0, "correlation": correlation, "kind": "Dispatch Kernel"}
        writer.event("kernel", name, 10, 1, args=args, pid=0, tid=0)
    kernels = read_kineto(writer.write(tmp_path / "t.json")).ops
    found = [
        (int(kernels.grid_x[row]), int(kernels.block_x[row]), int(kernels.dynamic_smem_bytes[row]))
        for row in (0, 1)
    ]
    assert found == [(3, 64, 256), (-1, -1, -1)]


@pytest.mark.parametrize(
    ("category", "kind"), [("Kernel", KERNEL), ("Memcpy", MEMCPY), ("Memset", MEMSET), ("gpu_memcpy", MEMCPY)]
)
def test_gpu_rows_of_torch_1_12_are_read_under_their_old_categories(tmp_path, category, kind):
    at = {"ph": "X", "pid": 0, "tid": 7, "ts": 1_700_000_000_000_000, "dur": 3}
    args = {"device": 0, "stream": 7, "correlation": 5}
    events = [
        {**at, "cat": category, "name": "one", "args": args},
        {**at, "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "args": {"correlation": 5}},
        {**at, "cat": "Operator", "name": "aten::mm", "pid": 1, "tid": 1, "args": {"External id": 3}},
    ]
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    trace = read_kineto(path)
    assert trace.ops.kind.tolist() == [kind]
    assert (len(trace.api), len(trace.operators)) == (1, 1)
