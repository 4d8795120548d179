"""rocprofv3's CSV: kernels with the calls, copies, markers and agents of the files beside them."""

from __future__ import annotations

import gzip

import pytest

from lab.errors import BadDataError
from lab.recordings.capture import KERNEL, MEMCPY, PUSH_POP
from lab.recordings.load import load_capture

KERNELS = """Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,\
Start_Timestamp,End_Timestamp,LDS_Block_Size,VGPR_Count,Accum_VGPR_Count,Workgroup_Size_X,Workgroup_Size_Y,\
Workgroup_Size_Z,Grid_Size_X,Grid_Size_Y,Grid_Size_Z
KERNEL_DISPATCH,Agent 6,1,3,78,1,9,"gemm<a, b>",11,1000,1500,1024,32,8,256,1,1,4096,2,1
KERNEL_DISPATCH,Agent 4,1,3,78,2,9,relu,12,1600,1700,0,16,0,64,1,1,100,1,1
"""
CALLS = """Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp
HIP_RUNTIME_API,hipLaunchKernel,77,78,11,900,950
HIP_RUNTIME_API,hipLaunchKernel,77,78,12,960,990
HIP_RUNTIME_API,hipMemcpyAsync,77,78,13,1750,1760
"""
COPIES = """Kind,Direction,Stream_Id,Source_Agent_Id,Destination_Agent_Id,Correlation_Id,Start_Timestamp,\
End_Timestamp
MEMORY_COPY,MEMORY_COPY_DEVICE_TO_HOST,3,Agent 6,Agent 0,13,1800,1900
"""
MARKS = """Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp
MARKER_CORE_API,step 0,77,78,8,800,2000
MARKER_CONTROL_API,roctxProfilerPause,77,78,9,2001,2002
"""
AGENTS = """Node_Id,Logical_Node_Id,Agent_Type,Cu_Count,Product_Name
0,0,CPU,0,EPYC
2,1,GPU,304,MI300X
4,2,GPU,304,MI300X
6,3,GPU,304,MI300X
"""
NEIGHBOURS = {
    "hip_api_trace": CALLS,
    "memory_copy_trace": COPIES,
    "marker_api_trace": MARKS,
    "agent_info": AGENTS,
}


def write(folder, neighbours=NEIGHBOURS, kernels=KERNELS, suffix=""):
    for domain, text in {"kernel_trace": kernels, **neighbours}.items():
        data = text.encode()
        path = folder / f"7_{domain}.csv{suffix}"
        path.write_bytes(gzip.compress(data) if suffix else data)
    return folder / f"7_kernel_trace.csv{suffix}"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_files_of_one_run_are_one_recording(tmp_path, suffix):
    capture = load_capture(write(tmp_path, suffix=suffix))
    ops, api, ranges = capture.ops, capture.api, capture.ranges
    assert capture.text(ops.name_id).tolist() == ["gemm<a, b>", "relu", "MEMORY_COPY_DEVICE_TO_HOST"]
    assert ops.kind.tolist() == [KERNEL, KERNEL, MEMCPY]
    assert (ops.end_ns - ops.start_ns).tolist() == [500, 100, 100] and ops.stream.tolist() == [3, 3, 3]
    assert ops.device.tolist() == [2, 1, 2], "by the order of all GPUs, not of those that ran kernels"
    assert ops.grid_x.tolist() == [16, 2, -1] and ops.grid_y.tolist() == [2, 1, -1]
    assert ops.regs.tolist() == [40, 16, -1] and ops.dynamic_smem_bytes.tolist() == [1024, 0, -1]
    assert ops.copy_kind.tolist() == [-1, -1, 2] and ops.corr.tolist() == [11, 12, 13]
    assert capture.text(api.name_id).tolist() == ["hipLaunchKernel"] * 2 + ["hipMemcpyAsync"]
    assert set(api.pid.tolist()) == {77} and set(api.tid.tolist()) == {78}
    assert capture.text(ranges.name_id).tolist() == ["step 0"] and ranges.kind.tolist() == [PUSH_POP]
    assert [device.name for device in capture.devices] == ["MI300X"] * 3
    assert capture.verdict == "complete"


def test_alone_it_has_the_agents_that_ran_kernels_and_an_unknown_verdict(tmp_path):
    capture = load_capture(write(tmp_path, {}))
    assert capture.ops.device.tolist() == [1, 0] and capture.verdict == "unknown"
    assert [device.name for device in capture.devices] == ["Agent 4", "Agent 6"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("kernel_trace", KERNELS.replace("Agent_Id,", "Agent,"), "no column Agent_Id"),
        (
            "kernel_trace",
            KERNELS.replace(",1500,", ",later,"),
            "End_Timestamp is not a whole number: 'later'",
        ),
        ("kernel_trace", KERNELS.replace(",1500,", f",{2**70},"), "End_Timestamp is too large"),
        ("kernel_trace", KERNELS[:-20], "not as many fields"),
        ("kernel_trace", KERNELS.replace(",1000,", ",-5,"), "impossible times"),
        ("hip_api_trace", CALLS.replace("Function", "Name"), "no column Function"),
        ("memory_copy_trace", COPIES.replace("1800", "x"), "Start_Timestamp is not a whole number"),
        ("agent_info", AGENTS.replace("Agent_Type", "Type"), "no column Agent_Type"),
        ("hip_api_trace", "\xff", "no column Function"),
    ],
)
def test_odd_files_are_errors_that_name_them(tmp_path, name, text, message):
    path = write(tmp_path)
    (tmp_path / f"7_{name}.csv").write_text(text)
    with pytest.raises(BadDataError, match=message) as caught:
        load_capture(path)
    assert f"7_{name}.csv" in str(caught.value.location)
