"""A played job in the formats of the recorders that are no torch.profiler, and all formats by name."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.recordings.rocpdgen import Process as RocpdProcess
from tests.recordings.rocpdgen import write as write_database
from tests.recordings.rpdgen import Rpd
from tests.recordings.sdkgen import Element, symbol
from tests.recordings.sdkgen import write as write_elements
from tests.recordings.sqlgen import PREFIX, Export, global_tid
from tests.simulator.kineto import CUDA_STREAMS, write_kineto
from tests.simulator.program import START_NS, Job, Process, Row

ZERO_NS = START_NS - 10**15  # where the clocks of these recorders begin
KERNEL_COLUMNS = (
    "Kind Agent_Id Queue_Id Stream_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name Correlation_Id "
)
KERNEL_COLUMNS += "Start_Timestamp End_Timestamp"
COPIED = "MEMORY_COPY_HOST_TO_DEVICE"


def _span(start_ns: int, end_ns: int) -> tuple[int, int]:
    """On the recorder's clock; a row without a time stays at 0."""
    return (start_ns - ZERO_NS, end_ns - ZERO_NS) if start_ns else (0, 0)


def write_nsys(job: Job, path: Path) -> Path:
    """An export of nsys, with its own counts of what it collected."""
    export = Export(version="2025.5.1.121", schema="3.24.14")
    for process in job:
        pid, gpu = process.pid, process.device
        export.add("TARGET_INFO_GPU", id=gpu, name="NVIDIA H100 80GB HBM3", smCount=132, cuDevice=gpu)
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=gpu, pid=pid)
        for call in process.calls:
            span = _span(call.start_ns, call.end_ns)
            name = call.name if "_v" in call.name else f"{call.name}_v7000"
            export.call(name, (pid, pid + call.thread), span, corr=call.corr)
        for row in process.rows:
            _nsys_row(export, process, row)
        for marked in process.ranges:
            span = _span(marked.start_ns, marked.end_ns)
            export.range(marked.name, (pid, pid + marked.thread), *span)
    for index, what in enumerate(("CUDA", "NVTX")):
        text = f"Number of {what} events collected: \t{sum(process.collected[index] for process in job)}."
        export.add(
            "DIAGNOSTIC_EVENT", timestamp=0, timestampType=1, source=1, severity=4, text=text, globalPid=0
        )
    return export.write(path)


def _nsys_row(export: Export, process: Process, row: Row) -> None:
    start_ns, end_ns = _span(row.start_ns, row.end_ns)
    device = {
        "deviceId": process.device,
        "contextId": 1,
        "greenContextId": 0,
        "globalPid": global_tid(process.pid),
    }
    shared = {
        "start": start_ns,
        "end": end_ns,
        "streamId": CUDA_STREAMS[row.stream],
        "correlationId": row.corr,
    }
    shared |= device | {"graphNodeId": row.node or None}
    if row.kind == "copy":
        export.add(PREFIX + "MEMCPY", **shared, bytes=row.size, copyKind=1, srcKind=1, dstKind=2)
        return
    if row.kind == "fill":
        export.add(PREFIX + "MEMSET", **shared, value=0, bytes=row.size, memKind=2)
        return
    name = export.string(row.name) if row.name else None
    sizes = {"gridX": 64, "gridY": 1, "gridZ": 1, "blockX": 256, "blockY": 1, "blockZ": 1}
    sizes |= {"registersPerThread": 64, "staticSharedMemory": 0, "dynamicSharedMemory": 0}
    export.add(PREFIX + "KERNEL", **shared, demangledName=name, shortName=name, **sizes)


def write_rocpd(job: Job, path: Path) -> Path:
    processes = []
    for index, process in enumerate(job, start=1):
        made = RocpdProcess(f"{index:08x}-aaaa-7000-8000-{index:012x}", process.pid)
        for call in process.calls:
            made.call(call.name, _span(call.start_ns, call.end_ns), call.corr)
        for row in process.rows:
            span = _span(row.start_ns, row.end_ns)
            if row.kind == "copy":
                made.copy("HOST_TO_DEVICE", span, row.size, row.corr)
            else:
                unknown = {} if row.name else {"kernel_id": 999}  # of no symbol
                made.kernel(
                    row.name, span, row.corr, dispatch_id=row.dispatch, stream_id=row.stream, **unknown
                )
        for marked in process.ranges:
            made.mark(marked.name, _span(marked.start_ns, marked.end_ns), 0)
        processes.append(made)
    return write_database(path, *processes)


def write_rpd(job: Job, path: Path) -> Path:
    made = Rpd(schema=2)
    for process in job:
        numbers = {}
        for call in process.calls:
            span = _span(call.start_ns, call.end_ns)
            numbers[call.corr] = made.call(call.name, span, pid=process.pid, tid=process.pid + call.thread)
        for row in process.rows:
            call, stream = numbers.get(row.corr), hex(row.stream)
            kind, text = "KernelExecution", row.name
            if row.kind == "copy":
                kind, text = "CopyHostToDevice", ""
                made.rows["rocpd_copyapi"].append({"api_ptr_id": call, "stream": stream, "size": row.size})
            else:
                sizes = {f"{name}{axis}": 64 for name in ("grid", "workgroup") for axis in "XYZ"}
                made.rows["rocpd_kernelapi"].append({"api_ptr_id": call, "stream": stream} | sizes)
            made.op(kind, _span(row.start_ns, row.end_ns), call, text, gpu=process.device)
        for marked in process.ranges:
            span = _span(marked.start_ns, marked.end_ns)
            made.call("UserMarker", span, pid=process.pid, tid=process.pid, args=marked.name)
    return made.write(path)


def write_rocprofv3(job: Job, path: Path) -> Path:
    """One element per process, as `rocprofv3 --output-format json` writes them."""
    return write_elements(path, *map(_element, job))


def _element(process: Process) -> Element:
    made, symbols = Element(process.pid, "AMD Instinct MI300X", 304), {"": 0}
    made.symbols = []
    for call in process.calls:
        made.call(call.name, _span(call.start_ns, call.end_ns), call.corr)
    for row in process.rows:
        span, lane = _span(row.start_ns, row.end_ns), {"stream_id": {"handle": row.stream}}
        if row.kind == "copy":
            made.copy(span, row.size, row.corr, dst_agent_id={"handle": 102}, **lane)
            continue
        if row.name not in symbols:
            symbols[row.name] = len(symbols)
            made.symbols.append(symbol(symbols[row.name], row.name))
        made.kernel(symbols[row.name], span, row.corr, row.dispatch, **lane)
    for index, marked in enumerate(process.ranges):
        made.mark(marked.name, _span(marked.start_ns, marked.end_ns), 0xFFFFFF - index)
    return made


def write_csv(job: Job, path: Path) -> Path:
    """`rocprofv3 --kernel-trace --memory-copy-trace --hip-trace --output-format csv`, of one process."""
    (process,) = job
    kernels, copies = [], []
    for row in process.rows:
        start_ns, end_ns = _span(row.start_ns, row.end_ns)
        shared = {"Correlation_Id": row.corr, "Start_Timestamp": start_ns, "End_Timestamp": end_ns}
        if row.kind == "copy":
            agents = {"Source_Agent_Id": "Agent 0", "Destination_Agent_Id": "Agent 4"}
            kind = {"Kind": "MEMORY_COPY", "Direction": COPIED, "Stream_Id": row.stream}
            copies.append(kind | agents | shared)
            continue
        lane = {"Kind": "KERNEL_DISPATCH", "Agent_Id": "Agent 4", "Queue_Id": 1, "Stream_Id": row.stream}
        lane |= {
            "Thread_Id": process.pid,
            "Dispatch_Id": row.dispatch,
            "Kernel_Id": 1,
            "Kernel_Name": row.name,
        }
        sizes = {f"{name}_Size_{axis}": 256 for name in ("Workgroup", "Grid") for axis in "XYZ"}
        kernels.append(lane | shared | {"LDS_Block_Size": 0, "VGPR_Count": 32} | sizes)
    calls = [
        {
            "Domain": "HIP_RUNTIME_API",
            "Function": call.name,
            "Process_Id": process.pid,
            "Thread_Id": process.pid,
        }
        | {"Correlation_Id": call.corr}
        | dict(zip(("Start_Timestamp", "End_Timestamp"), _span(call.start_ns, call.end_ns), strict=True))
        for call in process.calls
    ]
    for domain, rows in (("kernel_trace", kernels), ("memory_copy_trace", copies), ("hip_api_trace", calls)):
        file = path.with_name(path.name.replace("kernel_trace", domain))
        if rows or file == path:
            with file.open("w", encoding="utf-8", newline="") as text:
                columns = list(rows[0]) if rows else KERNEL_COLUMNS.split()
                writer = csv.DictWriter(text, columns, quoting=csv.QUOTE_NONNUMERIC)
                writer.writeheader()
                writer.writerows(rows)
        else:
            file.unlink(missing_ok=True)
    return path


@dataclass(frozen=True)
class Format:
    """A recorder's format: the file's name, what writes it, the GPU's vendor, what it records."""

    file: str
    write: Callable[[Job, Path], Path]
    amd: bool = False
    operators: bool = False
    ranges: bool = True


FORMATS = {
    "kineto": Format("trace.json", write_kineto, operators=True),
    "kineto_old": Format("trace.json.gz", partial(write_kineto, old=True), operators=True),
    "kineto_rocm": Format("trace.json", write_kineto, amd=True, operators=True),
    "nsys": Format("profile.sqlite", write_nsys),
    "rocpd": Format("results.db", write_rocpd, amd=True),
    "rocprofv3": Format("results.json", write_rocprofv3, amd=True),
    "rocprofv3_csv": Format("1_kernel_trace.csv", write_csv, amd=True, ranges=False),
    "rpd": Format("trace.rpd", write_rpd, amd=True),
}
